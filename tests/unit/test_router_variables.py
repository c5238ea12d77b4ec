"""Every variable of the source is taken under its name and with its default. What differs has its reason here."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "reference"
DEFAULTS = {
    "REDIS_POOL_SIZE": "10",
    "REDIS_MIN_IDLE_CONN": "5",
    "REDIS_MAX_RETRIES": "3",
    "HTTP_PORT": "8080",
    "METRICS_PORT": "9090",
    "HTTP_READ_TIMEOUT": "5s",
    "HTTP_WRITE_TIMEOUT": "10s",
    "HTTP_SHUTDOWN_TIMEOUT": "30s",
    "VOICE_AGENT_BASE_URL": "wss://localhost:8081",
    "VOICE_AGENT_HEARTBEAT_TTL": "90s",
    "NAMESPACE": "default",
    "POD_LABEL_SELECTOR": "app=voice-agent",
    "CLEANUP_INTERVAL": "30s",
    "LEASE_TTL": "24h",
    "DRAINING_TTL": "6m",
    "RECONCILE_INTERVAL": "60s",
    "TIER_CONFIG": "{}",
    "LEADER_ELECTION_ENABLED": "true",
    "LEADER_ELECTION_LOCK_NAME": "smart-router-leader",
    "LEADER_ELECTION_DURATION": "15s",
    "LEADER_ELECTION_RENEW_DEADLINE": "10s",
    "LEADER_ELECTION_RETRY_PERIOD": "2s",
    "LOG_LEVEL": "info",
    # Unset, an embedded one is started.
    "REDIS_URL": "unset",
    # Two processes of one machine must not be taken for one.
    "POD_NAME": "<host>-<process id>",
    # The same as NAMESPACE.
    "LEADER_ELECTION_NAMESPACE": "unset",
    # `json`, but for a person at a terminal.
    "LOG_FORMAT": "auto",
}


@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_a_variable_of_the_source_has_its_default(name: str) -> None:
    pages = (DOCS / "settings.md").read_text(encoding="utf-8") + (DOCS / "tuning.md").read_text(
        encoding="utf-8"
    )
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+?)`? \|", pages, re.MULTILINE))
    assert rows[name] == DEFAULTS[name]

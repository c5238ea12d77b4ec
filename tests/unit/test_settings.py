"""Settings are read from a mapping, frozen, and describe themselves without telling secrets."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from trunkline.settings import ROLES, Settings, load_settings
from trunkline.settings.reading import VARIABLES
from trunkline.settings.spellings import READ_ELSEWHERE, spellings
from trunkline.settings.values import parse_duration_s

# A loaded machine is slow; that is not what is tested.
unhurried = hypothesis_settings(deadline=None)

KEY = "k" * 32


def test_defaults_need_no_environment() -> None:
    settings = load_settings({})
    assert (settings.http.host, settings.http.port, settings.http.metrics_port) == ("127.0.0.1", 8080, 9090)
    assert settings.database.url is None
    assert settings.redis.url is None
    assert settings.roles == ROLES
    assert settings.data_dir == Path(".trunkline")
    assert settings.router_key_prefix == "voice"
    assert settings.warnings == ()


def test_flat_names_fill_the_groups() -> None:
    settings = load_settings(
        {
            "HTTP_PORT": "8000",
            "REDIS_URL": "rediss://cache:6380/1",
            "LEADER_ELECTION_RENEW_DEADLINE": "9",
            "LOG_LEVEL": "DEBUG",
            "LEADER_ELECTION_ENABLED": "false",
            "TRUNKLINE_ROLES": "api, router",
        }
    )
    assert settings.http.port == 8000
    assert settings.redis.url == "rediss://cache:6380/1"
    assert settings.leader.renew_deadline_s == 9
    assert settings.leader.enabled is False
    assert settings.log.level == "debug"
    assert settings.roles == ("api", "router")


def test_the_process_environment_is_read_when_no_mapping_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PORT", "8001")
    assert load_settings().http.port == 8001
    assert load_settings({}).http.port == 8080


def test_settings_cannot_be_changed() -> None:
    settings = load_settings({})
    with pytest.raises(ValidationError):
        settings.http.port = 1  # type: ignore[misc]
    with pytest.raises(ValidationError):
        settings.domain = "other"  # type: ignore[misc]


def test_an_override_wins_over_the_environment_and_none_does_not() -> None:
    settings = load_settings({"HTTP_PORT": "8000", "LOG_LEVEL": "error"}, HTTP_PORT=0, LOG_LEVEL=None)
    assert settings.http.port == 0
    assert settings.log.level == "error"


def test_an_override_without_such_a_setting_is_a_mistake_in_the_code() -> None:
    with pytest.raises(TypeError, match="HTTP_PROT"):
        load_settings({}, HTTP_PROT=1)


def test_an_empty_variable_counts_as_unset() -> None:
    settings = load_settings({"HTTP_PORT": "", "DATABASE_URL": "  "})
    assert settings.http.port == 8080
    assert settings.database.url is None


PREFIXED = [name for name in VARIABLES if not name.startswith(("TRUNKLINE_", "KUBERNETES_SERVICE_"))]


@pytest.mark.parametrize("name", PREFIXED)
def test_every_variable_may_have_our_prefix(name: str) -> None:
    assert spellings(name) == (name, f"TRUNKLINE_{name}")


@pytest.mark.parametrize("name", sorted(VARIABLES.keys() - set(PREFIXED)))
def test_a_variable_that_has_our_prefix_or_is_set_by_the_cluster_has_one_name(name: str) -> None:
    assert spellings(name) == (name,)


def test_no_spelling_is_that_of_another_variable() -> None:
    every = [spelling for name in VARIABLES for spelling in spellings(name)]
    assert len(every) == len(set(every))
    assert READ_ELSEWHERE.isdisjoint(every)


def test_a_value_is_read_under_either_spelling() -> None:
    """Alike under both is no contradiction, and an empty one counts as unset."""
    settings = load_settings(
        {
            "TRUNKLINE_HTTP_PORT": "8000",
            "LOG_LEVEL": "error",
            "TRUNKLINE_LOG_LEVEL": " error ",
            "REDIS_URL": "",
            "TRUNKLINE_REDIS_URL": "redis://cache",
            "LEASE_TTL": "1h",
            "TRUNKLINE_LEASE_TTL": "",
        }
    )
    assert (settings.http.port, settings.log.level) == (8000, "error")
    assert (settings.redis.url, settings.router.lease_ttl_s) == ("redis://cache", 3600)
    assert settings.warnings == ()
    given_as = {row.name: row.given_as for row in settings.describe() if row.source == "environment"}
    assert given_as == {
        "HTTP_PORT": "TRUNKLINE_HTTP_PORT",
        "LOG_LEVEL": "LOG_LEVEL",
        "REDIS_URL": "TRUNKLINE_REDIS_URL",
        "LEASE_TTL": "LEASE_TTL",
    }


def test_an_override_wins_over_the_prefixed_spelling() -> None:
    assert load_settings({"TRUNKLINE_HTTP_PORT": "8000"}, HTTP_PORT=0).http.port == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5),
        ("200ms", 0.2),
        ("2m", 120),
        ("24h", 86_400),
        ("1m30s", 90),
        ("1.5s", 1.5),
        ("7", 7),
        ("0.25", 0.25),
    ],
)
def test_durations_have_units_or_are_seconds(text: str, seconds: float) -> None:
    assert load_settings({"HTTP_READ_TIMEOUT": text}).http.read_timeout_s == pytest.approx(seconds)


@unhurried
@given(st.integers(1, 10**6), st.sampled_from([("ms", 0.001), ("s", 1), ("m", 60), ("h", 3600)]))
def test_every_whole_amount_of_every_unit_is_a_duration(amount: int, unit: tuple[str, float]) -> None:
    assert parse_duration_s(f"{amount}{unit[0]}") == pytest.approx(amount * unit[1])


def test_two_secret_keys_are_given_while_rotating() -> None:
    settings = load_settings({"TRUNKLINE_SECRET_KEY": f"{KEY}, {'o' * 32}"})
    assert [key.get_secret_value() for key in settings.secret_keys] == [KEY, "o" * 32]


def test_a_direct_connection_falls_back_to_the_only_one() -> None:
    pooled, direct = "postgresql://pool/db", "postgresql://direct/db"
    assert load_settings({"DATABASE_URL": direct}).database.session_url == direct
    assert (
        load_settings({"DATABASE_URL": pooled, "DATABASE_DIRECT_URL": direct}).database.session_url == direct
    )


def test_on_a_cluster_the_router_keys_share_a_slot() -> None:
    cluster = {"REDIS_CLUSTER": "true", "REDIS_URL": "redis://node:6379"}
    assert load_settings(cluster).router_key_prefix == "{voice}"
    assert load_settings({**cluster, "ROUTER_KEY_PREFIX": "{mine}"}).router_key_prefix == "{mine}"


def test_base_urls_lose_their_last_slash() -> None:
    assert (
        load_settings({"PUBLIC_BASE_URL": "https://calls.example/"}).http.public_base_url
        == "https://calls.example"
    )


def test_every_process_has_a_name_of_its_own() -> None:
    assert load_settings({"POD_NAME": "trunkline-0"}).identity == "trunkline-0"
    assert load_settings({}).identity


SECRETS = {
    "TRUNKLINE_SECRET_KEY": "planted-secret-key-planted-secret-key",
    "TRUNKLINE_ADMIN_KEY": "planted-admin-key",
    "TWILIO_ACCOUNT_SID": "AC1",
    "TWILIO_AUTH_TOKEN": "planted-auth-token",
    "DATABASE_URL": "postgresql://user:planted-pg@db:5432/calls?password=planted-query",
    "REDIS_URL": "redis://:planted-redis@cache:6379/0",
}


def test_describe_masks_secrets_and_passwords_in_urls() -> None:
    rows = {row.name: row for row in load_settings(SECRETS).describe()}
    assert "planted" not in str(rows)
    assert rows["DATABASE_URL"].value == "postgresql://user:***@db:5432/calls?password=***"
    assert rows["REDIS_URL"].value == "redis://:***@cache:6379/0"
    assert rows["TWILIO_AUTH_TOKEN"].value == "***"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://cache:6379", "redis://cache:6379"),
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("redis://:6379@cache", "redis://:***@cache"),
        ("redis://user:6379@cache:6380", "redis://user:***@cache:6380"),
        ("redis://cache:planted", "redis://cache:***"),
        ("redis://cache:123456", "redis://cache:***"),
        ("postgresql://db/calls?user=a&password=6379", "postgresql://db/calls?user=a&password=***"),
    ],
)
def test_a_masked_url_shows_its_port_and_no_password(url: str, shown: str) -> None:
    assert VARIABLES["REDIS_URL"].masked(url) == shown


def test_the_text_of_settings_contains_no_secret() -> None:
    settings = load_settings(SECRETS)
    assert "planted" not in repr(settings)
    assert "planted" not in str(settings)


def test_describe_says_where_a_value_comes_from() -> None:
    settings = load_settings({"HTTP_HOST": "::1"}, HTTP_PORT=0, TRUNKLINE_ROLES=("api", "jobs"))
    rows = {row.name: row for row in settings.describe()}
    assert (rows["HTTP_HOST"].value, rows["HTTP_HOST"].source) == ("::1", "environment")
    assert (rows["HTTP_PORT"].value, rows["HTTP_PORT"].default, rows["HTTP_PORT"].source) == (
        "0",
        "8080",
        "argument",
    )
    assert rows["TRUNKLINE_ROLES"].value == "api,jobs"
    assert (rows["LOG_LEVEL"].value, rows["LOG_LEVEL"].source) == ("info", "default")
    assert all(row.meaning for row in rows.values())


def test_what_is_described_can_be_read_again() -> None:
    first = load_settings({"HTTP_PORT": "0", "RING_TIMEOUT": "20s"})
    again = load_settings({row.name: row.value for row in first.describe() if row.source != "default"})
    assert again.model_dump() == first.model_dump()


def test_groups_can_be_made_by_attribute_names() -> None:
    assert Settings(domain="east").domain == "east"

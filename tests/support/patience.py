"""Limits of the product that a slow machine runs into, raised for tests that are not about them.

Whoever runs a platform wants to hear within two seconds that an engine is away. Whoever runs its tests has a machine
with others on it: two seconds may pass in the middle of anything. A `conftest.py` that imports `patience` and
`impatient` has it for all its tests; `@pytest.mark.usefixtures("impatient")` gives one of them the real limits.
"""

from types import ModuleType

import pytest

from trunkline.app import components
from trunkline.bus import connection
from trunkline.control import refresh
from trunkline.dispatch import intent
from trunkline.jobs import wakeups
from trunkline.router import registry
from trunkline.store import mailboxes

RAISED: tuple[tuple[ModuleType, str, object], ...] = (
    (components, "ANSWER_COMMAND_S", 30.0),
    (components, "ANSWER_SESSION", {"lock_timeout": "30s", "statement_timeout": "30s"}),
    (connection, "COMMAND_TIMEOUT_S", 30.0),
    (refresh, "POLL_TIMEOUT_S", 30.0),
    (intent, "LOCK_TIMEOUT_MS", 30_000),
    (intent, "TRANSACTION_TIMEOUT_MS", 60_000),
    (registry, "REGISTER_S", 30.0),
    (mailboxes, "LOCK_TIMEOUT_MS", 60_000),
    (mailboxes, "BATCH_LOCK_TIMEOUT_MS", 60_000),
    (mailboxes, "COMMIT_TIMEOUT_MS", 60_000),
    (wakeups, "SEND_TIMEOUT_S", 30.0),
)


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "impatient" in request.fixturenames:
        return
    for module, name, value in RAISED:
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def impatient() -> None:
    """The real limits."""

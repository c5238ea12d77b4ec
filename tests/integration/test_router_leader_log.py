"""`grep is_leader` on the routers' logs finds the leader, as the operations sheet does it."""

from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from tests.support.router.managed import Managed, open_managed


@pytest.fixture
async def managed(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Managed]:
    async with open_managed(database_url, redis_url, key_prefix) as managed:
        yield managed


async def test_every_change_of_leadership_is_logged_once(managed: Managed) -> None:
    with capture_logs() as logs:
        for term in (None, None, 2, 2, None, 1, 3):
            managed.leading.term = term
            await managed.pass_by(1)
    said = [
        (line["event"], line["is_leader"])
        for line in logs
        if "is_leader" in line and line["event"] != "router.reconciled"
    ]
    assert said == [
        ("router.follows", False),
        ("router.took_over", True),
        ("router.follows", False),
        # Term 1 is older than the one that led last: it is refused, and nothing has changed.
        ("router.took_over", True),
    ]


async def test_the_leader_logs_is_leader_with_every_reconcile(managed: Managed) -> None:
    """It took over long ago: every reconcile says it again."""
    with capture_logs() as logs:
        for _ in range(3):
            await managed.pass_by(61)
    assert [line["is_leader"] for line in logs if "is_leader" in line] == [True] * 3


async def test_a_follower_logs_is_leader_false_once(managed: Managed) -> None:
    managed.leading.term = None
    with capture_logs() as logs:
        for _ in range(3):
            await managed.pass_by(61)
    assert [line["is_leader"] for line in logs if "is_leader" in line] == [False]

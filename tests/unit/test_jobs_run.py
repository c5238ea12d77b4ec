"""What a handler can do with its run, before anything is sent to Postgres."""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.orm import Session

from trunkline.jobs import NotInTransaction, Run
from trunkline.jobs.run import ClaimedJob
from trunkline.model import new_id
from trunkline.store.jobs import JobClaim

NOW = datetime(2025, 1, 1, tzinfo=UTC)


class Idle:
    """A connection of asyncpg in no transaction. It has no way to send anything."""

    def is_in_transaction(self) -> bool:
        return False


@pytest.fixture
def run() -> Run:
    job = JobClaim(new_id(), 1, "work", 50, NOW, NOW, 1, 4, None, None, None, None, "{}")
    return Run(ClaimedJob(job, 0.0, 15.0), "w1", {})


@pytest.mark.parametrize(
    ("tx", "words"),
    [
        (Idle(), "in no transaction: the job would end before the handler's effects do"),
        (Session(), r"takes a connection of asyncpg and not sqlalchemy\.orm\.session\.Session: "),
    ],
)
async def test_run_finish_needs_an_open_asyncpg_transaction(run: Run, tx: Any, words: str) -> None:
    with pytest.raises(NotInTransaction, match=words):
        await run.finish(tx)
    assert not run.is_finished

"""Valkey is killed while calls are placed, and comes back. Every answered call has an agent, before, meanwhile
and after: counted from the carrier's ledger and the pods' own records.

`make bench ONLY=agents` does the same with two processes of each role, behind nginx, and with eleven other faults.
"""

import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import ForkServer
from tests.support.installation import Installation, open_installation
from tests.support.waiting import eventually
from trunkline.embedded import Engines
from trunkline.store.migrate import migrate
from trunkline.telephony.simulator.behaviour import Behaviour
from trunkline.telephony.simulator.ledger import Dial

# Calls of 2 to 5 s on 12 channels: two or three people answer every second.
TIME_SCALE = 0.1
PEOPLE = Behaviour(answer=0.8, busy=0.2, no_answer=0.0, failed=0.0, ring_s=(5, 10), talk_s=(15, 45))
PODS = 16
# As the agent library beats.
HEARTBEAT_S = 5.0
# People who answer in each part.
BEFORE, MEANWHILE, AFTER = 10, 20, 15


@pytest.fixture
async def place(
    fork_server: ForkServer, private_engines: Engines, tmp_path: Path
) -> AsyncIterator[Installation]:
    await migrate(private_engines.database_url)
    async with open_installation(
        fork_server,
        private_engines.database_url,
        private_engines.redis_url,
        tmp_path,
        pods=PODS,
        people=PEOPLE,
        time_scale=TIME_SCALE,
        heartbeat_interval_s=HEARTBEAT_S,
    ) as place:
        yield place


@pytest.mark.timeout(180)
async def test_every_answered_call_has_an_agent_while_valkey_is_down(
    place: Installation, private_engines: Engines
) -> None:
    valkey = private_engines.valkey
    assert valkey is not None
    async with place.load():
        await more_answered(place, BEFORE)
        os.kill(valkey.pid, signal.SIGKILL)
        await valkey.exited()
        await more_answered(place, MEANWHILE)
        await valkey.start()
        await more_answered(place, AFTER)
    await calls_are_over(place)
    broken = [
        *without_an_agent(place),
        *not_documents(place),
        *map(str, place.carrier.ledger.double_dials()),
        *map(str, place.carrier.ledger.over_capacity(place.numbers)),
        *map(str, place.pods.records().overlaps),
        *await recorded_wrongly(place),
    ]
    assert not broken, "\n".join(broken) + "\n" + place.tails()


async def more_answered(place: Installation, more: int) -> None:
    answered = place.carrier.ledger.answered
    wanted = len(answered) + more
    await eventually(lambda: len(answered) >= wanted, timeout_s=60, what=f"{more} more people answer")


async def calls_are_over(place: Installation) -> None:
    """Nobody is called any more, and what was told of those who were is written down."""
    await place.value(
        "UPDATE leads SET due_at = now() + interval '1 day', version = version + 1 WHERE status = 'BACKLOG'"
    )

    async def is_over() -> bool:
        live = await place.answers(
            "SELECT (SELECT count(*) FROM attempts"
            " WHERE state IN ('dialing', 'in_doubt', 'accepted', 'ringing', 'answered'))"
            " + (SELECT count(*) FROM mailboxes WHERE processing_status <> 'idle')"
        )
        return live == 0 and place.carrier.ledger.live() == 0

    await eventually(is_over, timeout_s=90, what="every call has ended and is recorded")


def without_an_agent(place: Installation) -> Iterator[str]:
    served = {record.call_sid for record in place.pods.records().calls}
    for call in place.carrier.ledger.answered:
        if call.call_id not in served:
            yield f"answered and talked to nobody: {call}"


def not_documents(place: Installation) -> Iterator[str]:
    for call in place.carrier.ledger.answered:
        if any(document.bad for document in call.documents):
            yield f"was given no document: {call}"


async def recorded_wrongly(place: Installation) -> list[str]:
    last: dict[str, Dial] = {}
    for dial in place.carrier.ledger.dials:
        last[dial.to] = dial
    rows = await place.rows("SELECT phone, status, outcome, outcome_reason FROM leads")
    return [said for row in rows if (said := _wrong(row, last.get(row["phone"])))]


def _wrong(row: Any, dial: Dial | None) -> str | None:
    """Everybody has an agent, so a lead whose last call was answered is ANSWERED. A busy one may come again."""
    recorded = (row["status"], row["outcome"], row["outcome_reason"])
    if dial is None:
        is_right = row["outcome"] is None
    elif dial.answered_at is not None:
        is_right = row["outcome"] == "ANSWERED"
    else:
        is_right = row["outcome"] in (None, "BUSY", "NO_ANSWER")
    return None if is_right else f"{dial}: recorded as {recorded}"

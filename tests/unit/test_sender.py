"""What the sender asks before a committed call leaves."""

from datetime import UTC, datetime
from typing import cast
from uuid import UUID

import pytest

from trunkline.clock import SystemClock
from trunkline.dispatch.results import Answer, ResultWriter
from trunkline.dispatch.sender import ASKED_AHEAD_S, Asked, Callbacks, Sender, SenderLimits
from trunkline.model import Intent, new_id
from trunkline.telephony.callbacks import CallbackKeys
from trunkline.telephony.carrier import Rejected
from trunkline.telephony.directory import CarrierDirectory


class Results:
    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def add(self, answer: Answer) -> None:
        self.answers.append(answer)

    async def flush(self) -> None:
        return None


class TurnHasCome(SystemClock):
    """Whatever waits for its turn has waited: no test has to."""

    def boottime_s(self) -> float:
        return 10.0


@pytest.mark.parametrize(
    ("send_in_s", "asked"), [(0.0, False), (ASKED_AHEAD_S, False), (2 * ASKED_AHEAD_S, True), (1.0, True)]
)
async def test_of_a_call_that_waits_for_its_turn_it_is_asked_once_more_whether_it_is_wanted(
    send_in_s: float, *, asked: bool
) -> None:
    questions: list[UUID] = []

    async def unwanted(lead_id: UUID) -> bool:
        questions.append(lead_id)
        return True

    clock, results = TurnHasCome(), Results()
    sender = Sender(
        clock,
        CarrierDirectory({}),
        Callbacks("http://here", CallbackKeys.from_secrets(["secret"])),
        cast(ResultWriter, results),
        SenderLimits(),
        killed=lambda: None,
        unwanted=unwanted,
    )
    now = datetime.now(UTC)
    intent = Intent(
        new_id(), new_id(), "twilio", "default", "+12125550001", "+14155550100", now, now, send_in_s
    )
    sender.send_soon(intent, Asked(0.0, now.timestamp()), send_in_s)
    await sender.drain()
    (answer,) = results.answers
    assert isinstance(answer.place, Rejected)
    assert (questions == [intent.lead_id]) is asked
    assert (answer.place.code == "unwanted") is asked, "and an unwanted one does not leave"

"""Events of answers: written after the answer, tried again, bounded, and counted where they are lost."""

import asyncio
from collections.abc import Sequence

from tests.support.api.webhooks import count
from trunkline.api.webhooks.answers import LateEvents
from trunkline.errors import StoreUnavailable
from trunkline.mailbox.inbox import BadEvent
from trunkline.store.mailboxes import NewEvent, Receipt
from trunkline.telemetry import metrics

FAST = (0.0, 0.0)


def event(key: str) -> NewEvent:
    return NewEvent(kind="call", key=key, dedupe_key=f"{key}:answered", type="answered", payload={})


class Inbox:
    def __init__(self) -> None:
        self.kept: list[str] = []
        self.fails = 0
        self.tried = 0
        self.bad: set[str] = set()

    async def append_all(self, events: Sequence[NewEvent]) -> list[Receipt]:
        self.tried += 1
        if self.fails:
            self.fails -= 1
            raise StoreUnavailable("away")
        if any(one.key in self.bad for one in events):
            raise BadEvent("no mailbox takes it")
        self.kept += [one.key for one in events]
        return []


def dropped() -> float:
    return count(metrics.ANSWER_EVENTS_DROPPED, carrier="twilio")


async def test_late_events_put_together_are_written_together_in_order() -> None:
    inbox = Inbox()
    late = LateEvents(inbox.append_all)
    for n in range(5):
        late.put("twilio", event(str(n)))
    assert not inbox.kept, "nobody waited for it"
    await late.written()
    assert (inbox.kept, inbox.tried) == (["0", "1", "2", "3", "4"], 1)


async def test_a_late_event_is_retried_until_the_store_is_back() -> None:
    inbox = Inbox()
    inbox.fails = 7
    late = LateEvents(inbox.append_all, retry_s=FAST)
    late.put("twilio", event("a"))
    await late.written()
    assert (inbox.kept, len(late)) == (["a"], 0)


async def test_late_events_are_bounded_and_dropped_ones_are_counted() -> None:
    inbox, before = Inbox(), dropped()
    late = LateEvents(inbox.append_all, waiting_max=2)
    for n in range(5):
        late.put("twilio", event(str(n)))
    await late.written()
    assert (inbox.kept, dropped() - before) == (["0", "1"], 3)


async def test_a_late_event_that_cannot_be_written_is_dropped_alone() -> None:
    inbox, before = Inbox(), dropped()
    inbox.bad = {"1"}
    late = LateEvents(inbox.append_all)
    for n in range(3):
        late.put("twilio", event(str(n)))
    await late.written()
    assert (inbox.kept, dropped() - before) == (["0", "2"], 1)


async def test_closing_writes_late_events_once_and_counts_the_others_as_dropped() -> None:
    inbox, before = Inbox(), dropped()
    late = LateEvents(inbox.append_all)
    late.put("twilio", event("a"))
    await late.aclose()
    assert inbox.kept == ["a"]
    inbox.fails = 10**9
    late = LateEvents(inbox.append_all, retry_s=FAST)
    late.put("twilio", event("b"))
    await asyncio.sleep(0)
    await late.aclose()
    assert (inbox.kept, dropped() - before) == (["a"], 1)

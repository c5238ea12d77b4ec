"""Sends webhooks, retries them as the carrier would, and loses, duplicates, swaps or delays them by fault."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trunkline.telephony.http_exchange import Exchange, HttpReply, ReplyLost
from trunkline.telephony.simulator.activity import Activity
from trunkline.telephony.simulator.faults import WebhookFault
from trunkline.telephony.simulator.post import Poster
from trunkline.telephony.simulator.wire import Letter


@dataclass(slots=True)
class CallWebhooks:
    """The webhooks of one call: where a swapped one waits for the next to overtake it."""

    held: Letter | None = None
    # Set when the first webhook has been answered, if a caller waits for it.
    first_delivered: asyncio.Event | None = None


class Webhooks:
    def __init__(self, poster: Poster, activity: Activity) -> None:
        self._poster = poster
        self._activity = activity
        self.counts: Counter[str] = Counter()

    def send(
        self, lane: CallWebhooks, letter: Letter, fault: WebhookFault | None, late_s: float, *, last: bool
    ) -> None:
        """`last`: nothing follows in this lane, so there is nothing to swap it with."""
        if fault:
            self.counts[fault.value] += 1
        if fault is WebhookFault.REORDERED and not last and lane.held is None:
            lane.held = letter
            return
        batch = [] if fault is WebhookFault.LOST else [letter]
        if lane.held is not None:
            batch.append(lane.held)
            lane.held = None
        self._start(lane, batch, late_s)
        if fault is WebhookFault.DOUBLED:
            self._start(lane, [letter], 0.0)

    async def ask(
        self,
        letter: Letter,
        first: Exchange | None = None,
        tried: Callable[[Exchange], None] = lambda _: None,
    ) -> Exchange:
        """Deliver as the carrier does, with its retries. `first`: the result of the first try, if it was made; `tried`
        gets the result of each of the others."""
        rule, loop = letter.rule, asyncio.get_running_loop()
        until_s = loop.time() + rule.total_s
        if first is None:
            first = await self._poster.send(letter.request, rule.timeouts.within(rule.total_s))
            tried(first)
        outcome = first
        for _ in range(rule.retries):
            left_s = until_s - loop.time()
            if not rule.applies(outcome) or left_s <= 0:
                break
            self.counts["retried"] += 1
            outcome = await self._poster.send(letter.request, rule.timeouts.within(left_s))
            tried(outcome)
        return outcome

    def _start(self, lane: CallWebhooks, batch: list[Letter], delay_s: float) -> None:
        if not batch:
            return
        self._activity.begin()
        if delay_s:
            self._activity.spawn_later(delay_s, lambda: self._deliver(lane, batch))
        else:
            # Not at once: the request that caused it gets its response first.
            asyncio.get_running_loop().call_soon(self._try, lane, batch)

    def _try(self, lane: CallWebhooks, batch: list[Letter]) -> None:
        """Nearly every letter is delivered at the first try over an open connection: it needs no task."""
        letter = batch[0]
        answer = self._poster.send_at_once(letter.request, letter.rule.timeouts) if len(batch) == 1 else None
        if answer is None:
            self._activity.spawn(self._deliver(lane, batch))
        else:
            self._activity.watch(answer)
            answer.add_done_callback(partial(self._tried, lane, letter))

    def _tried(
        self, lane: CallWebhooks, letter: Letter, answer: "asyncio.Future[HttpReply | ReplyLost]"
    ) -> None:
        if answer.cancelled():
            self._activity.end()
        elif letter.rule.applies(answer.result()):
            self._activity.spawn(self._deliver(lane, [letter], answer.result()))
        else:
            self._count(lane, answer.result())
            self._activity.end()

    async def _deliver(self, lane: CallWebhooks, batch: list[Letter], first: Exchange | None = None) -> None:
        try:
            for letter in batch:
                self._count(lane, await self.ask(letter, first))
        finally:
            self._activity.end()

    def _count(self, lane: CallWebhooks, outcome: Exchange) -> None:
        accepted = isinstance(outcome, HttpReply) and outcome.status < 400
        self.counts["delivered" if accepted else "failed"] += 1
        if lane.first_delivered is not None:
            lane.first_delivered.set()

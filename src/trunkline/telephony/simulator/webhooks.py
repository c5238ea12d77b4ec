"""Sends webhooks, retries them as the carrier would, and loses, duplicates, swaps or delays them by fault."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from trunkline.telephony.http_exchange import Exchange, HttpReply
from trunkline.telephony.simulator.activity import Activity
from trunkline.telephony.simulator.faults import WebhookFault
from trunkline.telephony.simulator.webhook_client import WebhookClient
from trunkline.telephony.simulator.wire import Letter


@dataclass(slots=True)
class CallWebhooks:
    """The webhooks of one call: where a swapped one waits for the next to overtake it."""

    held: Letter | None = None
    # Set when the first webhook has been answered, if a caller waits for it.
    first_delivered: asyncio.Event | None = None


class Webhooks:
    def __init__(self, client: WebhookClient, activity: Activity) -> None:
        self._client = client
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

    async def ask(self, letter: Letter, tried: Callable[[Exchange], None] = lambda _: None) -> Exchange:
        """Deliver as the carrier does, with its retries; `tried` gets the result of each."""
        rule, loop = letter.rule, asyncio.get_running_loop()
        until_s = loop.time() + rule.total_s
        outcome = await self._client.send(letter.request, rule.timeouts.within(rule.total_s))
        tried(outcome)
        for _ in range(rule.retries):
            left_s = until_s - loop.time()
            if not rule.applies(outcome) or left_s <= 0:
                break
            self.counts["retried"] += 1
            outcome = await self._client.send(letter.request, rule.timeouts.within(left_s))
            tried(outcome)
        return outcome

    def _start(self, lane: CallWebhooks, batch: list[Letter], delay_s: float) -> None:
        if not batch:
            return
        self._activity.begin()
        if delay_s:
            self._activity.spawn_later(delay_s, lambda: self._deliver(lane, batch))
        else:
            self._activity.spawn(self._deliver(lane, batch))

    async def _deliver(self, lane: CallWebhooks, batch: list[Letter]) -> None:
        try:
            for letter in batch:
                self._count(lane, await self.ask(letter))
        finally:
            self._activity.end()

    def _count(self, lane: CallWebhooks, outcome: Exchange) -> None:
        accepted = isinstance(outcome, HttpReply) and outcome.status < 400
        self.counts["delivered" if accepted else "failed"] += 1
        if lane.first_delivered is not None:
            lane.first_delivered.set()

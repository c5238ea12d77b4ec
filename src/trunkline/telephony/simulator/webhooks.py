"""Webhooks on their way: sent, sent again as the carrier would, and lost, doubled, swapped or late by fault."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urldefrag

from trunkline.telephony.simulator.activity import Activity
from trunkline.telephony.simulator.faults import WebhookFault
from trunkline.telephony.simulator.post import Answer, NoAnswer, Outgoing, Poster, Timeouts


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Twilio's connection overrides, from the URL's fragment: `#rc=2&rp=all&ct=500&rt=1000`."""

    retries: int = 1
    # ct = could not connect, rt = no answer in time, 4xx and 5xx = by status, all.
    policy: frozenset[str] = frozenset({"ct"})
    timeouts: Timeouts = field(default_factory=Timeouts)

    @classmethod
    def of(cls, url: str) -> "RetryRule":
        fragment = urldefrag(url).fragment
        if not fragment:
            return _USUAL
        given = dict(parse_qsl(fragment))
        return cls(
            retries=min(int(given.get("rc", "1")), 5),
            policy=frozenset(given.get("rp", "ct").split(",")),
            timeouts=Timeouts(int(given.get("ct", "5000")) / 1000, int(given.get("rt", "15000")) / 1000),
        )

    def applies(self, outcome: Answer | NoAnswer) -> bool:
        match outcome:
            case NoAnswer(stage="connect"):
                kind = "ct"
            case NoAnswer():
                kind = "rt"
            case Answer(status=status) if status >= 400:
                kind = "4xx" if status < 500 else "5xx"
            case _:
                return False
        return bool({kind, "all"} & self.policy)


_USUAL = RetryRule()


@dataclass(slots=True)
class Lane:
    """The webhooks of one call: where a swapped one waits for the next to overtake it."""

    held: Outgoing | None = None
    # Where somebody waits for the first webhook to have been answered.
    first_delivered: asyncio.Event | None = None


class Webhooks:
    def __init__(self, poster: Poster, activity: Activity) -> None:
        self._poster = poster
        self._activity = activity
        self.counts: Counter[str] = Counter()

    def send(
        self, lane: Lane, request: Outgoing, fault: WebhookFault | None, late_s: float, *, last: bool
    ) -> None:
        """`last`: nothing follows in this lane, so there is nothing to swap it with."""
        if fault:
            self.counts[fault.value] += 1
        if fault is WebhookFault.REORDERED and not last and lane.held is None:
            lane.held = request
            return
        batch = [] if fault is WebhookFault.LOST else [request]
        if lane.held is not None:
            batch.append(lane.held)
            lane.held = None
        self._start(lane, batch, late_s if fault is WebhookFault.LATE else 0.0)
        if fault is WebhookFault.DOUBLED:
            self._start(lane, [request], 0.0)

    async def ask(self, request: Outgoing) -> Answer | NoAnswer:
        """Deliver as the carrier does, with its retries."""
        rule = RetryRule.of(request.url)
        outcome = await self._poster.send(request, rule.timeouts)
        for _ in range(rule.retries):
            if not rule.applies(outcome):
                break
            self.counts["retried"] += 1
            outcome = await self._poster.send(request, rule.timeouts)
        return outcome

    def _start(self, lane: Lane, batch: list[Outgoing], delay_s: float) -> None:
        if not batch:
            return
        self._activity.begin()
        if delay_s:
            self._activity.spawn_later(delay_s, lambda: self._deliver(lane, batch))
        else:
            self._activity.spawn(self._deliver(lane, batch))

    async def _deliver(self, lane: Lane, batch: list[Outgoing]) -> None:
        try:
            for request in batch:
                outcome = await self.ask(request)
                accepted = isinstance(outcome, Answer) and outcome.status < 400
                self.counts["delivered" if accepted else "failed"] += 1
                if lane.first_delivered is not None:
                    lane.first_delivered.set()
        finally:
            self._activity.end()

"""Sends webhooks, retries them as the carrier would, and loses, duplicates, swaps or delays them by fault.

They leave over the connections that the platform sends its dials over: every test of a call tests those twice.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl

from trunkline.http.connections import Exchange, HttpReply, NotSent, Origin, ReplyLost, split
from trunkline.telephony.simulator.activity import Activity
from trunkline.telephony.simulator.faults import WebhookFault
from trunkline.value import Private, Value

# Below the 5 s after which common servers close an idle connection.
IDLE_MAX_S = 2.0
CONNECTIONS_MAX = 200


class Outgoing(Value, frozen=True):
    method: str
    url: Private[str]
    headers: Private[tuple[tuple[str, str], ...]]
    body: Private[bytes]


class Timeouts(Value, frozen=True):
    connect_s: float = 5.0
    read_s: float = 15.0

    def within(self, left_s: float) -> "Timeouts":
        if left_s >= self.read_s and left_s >= self.connect_s:
            return self
        return Timeouts(min(self.connect_s, left_s), min(self.read_s, left_s))


class WebhookRetryRule(Value, frozen=True):
    """When a carrier retries a webhook. Each has its own rule, and Twilio and Plivo take retry orders in the URL."""

    retries: int = 1
    # ct = could not connect, rt = no answer in time, 4xx and 5xx = by status, all.
    policy: frozenset[str] = frozenset({"ct"})
    timeouts: Timeouts = Timeouts()
    # All tries together.
    total_s: float = 15.0

    def ordered_by(self, url: str) -> "WebhookRetryRule":
        """The orders in the URL's fragment: `#rc=2&rp=all&ct=500&rt=1000&tt=5000`."""
        fragment = url.partition("#")[2]
        return _ordered(self, fragment) if fragment else self

    def applies(self, outcome: Exchange) -> bool:
        match outcome:
            case NotSent():
                kind = "ct"
            case ReplyLost():
                kind = "rt"
            case HttpReply(status=status) if status >= 400:
                kind = "4xx" if status < 500 else "5xx"
            case _:
                return False
        return bool({kind, "all"} & self.policy)


@lru_cache(maxsize=256)  # a client sends the same orders with every call
def _ordered(rule: WebhookRetryRule, fragment: str) -> WebhookRetryRule:
    given = dict(parse_qsl(fragment))
    return WebhookRetryRule(
        retries=min(int(given.get("rc", rule.retries)), 5),
        policy=frozenset(given["rp"].split(",")) if "rp" in given else rule.policy,
        timeouts=Timeouts(
            _seconds(given, "ct", rule.timeouts.connect_s), _seconds(given, "rt", rule.timeouts.read_s)
        ),
        total_s=min(_seconds(given, "tt", rule.total_s), rule.total_s),
    )


def _seconds(given: dict[str, str], name: str, otherwise: float) -> float:
    return int(given[name]) / 1000 if name in given else otherwise


TWILIO = WebhookRetryRule()
PLIVO = WebhookRetryRule(policy=frozenset({"ct", "rt"}), timeouts=Timeouts(2.0, 40.0), total_s=55.0)
NEVER = WebhookRetryRule(retries=0)
EXOTEL = WebhookRetryRule(retries=2, policy=frozenset({"all"}), total_s=45.0)
# No retries, unless the call was ordered with a backoff plan.
VAPI = WebhookRetryRule(retries=0, timeouts=Timeouts(5.0, 20.0), total_s=600.0)
# The request for the assistant of an inbound call must be answered within this time.
VAPI_QUESTION = WebhookRetryRule(retries=0, timeouts=Timeouts(5.0, 7.5), total_s=7.5)


class Letter(Value, frozen=True):
    """A webhook with its retry rule."""

    request: Outgoing
    rule: WebhookRetryRule


class WebhookClient:
    """Sends requests over as few connections as they need, so many at a time; the others wait."""

    def __init__(self) -> None:
        self._origins: dict[str, Origin] = {}
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)

    async def send(self, request: Outgoing, timeouts: Timeouts) -> Exchange:
        async with self._slots:
            try:
                origin, content = self._addressed(request)
                connection = origin.reused() or await origin.connected(timeouts.connect_s)
            except Exception as error:  # whatever it is, nothing was written
                return NotSent("not_connected", type(error).__name__)
            try:
                if not connection.is_free:
                    return NotSent("not_connected", "closed at once")
                until_s = asyncio.get_running_loop().time() + timeouts.read_s
                return await connection.exchange(content, until_s)
            finally:
                origin.put_back(connection)

    def close(self) -> None:
        for origin in self._origins.values():
            origin.close()
        self._origins.clear()

    def _addressed(self, request: Outgoing) -> tuple[Origin, bytes]:
        """Raises ValueError for what cannot be sent. A call has URLs of its own, and all calls have few origins."""
        name, target = split(request.url)
        origin = self._origins.get(name)
        if origin is None:
            origin = self._origins[name] = Origin(name, idle_max_s=IDLE_MAX_S)
        return origin, _bytes_of(request, origin.host, target)


def _bytes_of(request: Outgoing, host: str, target: str) -> bytes:
    head = [f"{request.method} {target} HTTP/1.1", f"Host: {host}"]
    head += [f"{name}: {value}" for name, value in request.headers]
    head += [f"Content-Length: {len(request.body)}", "", ""]
    return "\r\n".join(head).encode() + request.body


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

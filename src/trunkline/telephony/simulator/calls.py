"""The states of a simulated call.

    queued ─► initiated ─► ringing ─► answered ─► ended (completed)
                 │            │           └ follows its document until either side hangs up
                 │            └─► ended (busy, no_answer, canceled)
                 └─► ended (failed)

    ringing (inbound) ─► its document is requested ─► answered, or ended (busy)

Timers move it from state to state; only an answered call has a task, while it follows its document.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from trunkline.telephony.carrier import EndReason
from trunkline.telephony.simulator import faults as faulty
from trunkline.telephony.simulator.activity import Activity
from trunkline.telephony.simulator.answered import Answered
from trunkline.telephony.simulator.answered_calls import AnsweredCall, EndedBy
from trunkline.telephony.simulator.behaviour import Fate, fate
from trunkline.telephony.simulator.config import SimulatedAccount, SimulatorConfig
from trunkline.telephony.simulator.faults import Faults, ReplyFault, WebhookFault
from trunkline.telephony.simulator.ledger import Dial, Ledger
from trunkline.telephony.simulator.magic import magic
from trunkline.telephony.simulator.pace import PacedQueue, RequestWindow
from trunkline.telephony.simulator.webhooks import CallWebhooks, Letter, Webhooks
from trunkline.telephony.simulator.wire import (
    CreateRequest,
    Event,
    HangUpOrder,
    StreamEvent,
    StreamOrder,
    Talk,
    Verb,
    Wire,
)
from trunkline.value import Value


class Request(Value, frozen=True):
    """One create request: its order, and how often this number was requested before. Both seed its random choices."""

    account: SimulatedAccount
    order: CreateRequest
    wire: Wire
    nth: int
    fault: ReplyFault | None
    slow_s: float


@dataclass(slots=True, eq=False)
class SimulatedCall:
    sid: str
    account: SimulatedAccount
    order: CreateRequest
    wire: Wire
    nth: int
    fate: Fate
    created_at: float
    updated_at: float
    queue_ms: int
    state: Literal["queued"] | Event = "queued"
    reason: EndReason | None = None
    # The number of webhooks sent so far.
    sequence: int = 0
    dial: Dial | None = None
    lane: CallWebhooks = field(default_factory=CallWebhooks)
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None
    # The record of an answered or inbound call.
    answered: AnsweredCall | None = None
    # Called when a document opens a stream; when that began or ended; when an agent is connected; when it is gone.
    on_stream: Callable[[str], None] = lambda _: None
    on_stream_event: Callable[[StreamOrder, StreamEvent], None] = lambda _stream, _event: None
    on_connected: Callable[[], None] = lambda: None
    on_silence: Callable[[], None] = lambda: None
    # How long the person still wants to talk, and since when.
    talk_left_s: float = 0.0
    talks_since: float | None = None

    @property
    def talked_s(self) -> int:
        """By its own times, rounded up as for billing; 0 for an unanswered call. A call that ended within a second
        lasted one, whatever its intended talk time, so that the duration matches the record's times."""
        dial = self.dial
        if dial is None or dial.answered_at is None or dial.ended_at is None:
            return 0
        return max(1, ceil(dial.ended_at - dial.answered_at))


class QueueFullError(Exception):
    """The account's queue is full."""


class SimulatedCalls:
    """Every call of the simulator, by id and by the number called."""

    def __init__(
        self,
        config: SimulatorConfig,
        ledger: Ledger,
        webhooks: Webhooks,
        answered: Answered,
        activity: Activity,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._webhooks = webhooks
        self._answered = answered
        self._activity = activity
        self._queues = {
            account.sid: PacedQueue(account.calls_per_s, self._dial) for account in config.accounts
        }
        self._windows = {
            account.sid: RequestWindow(account.requests_per_min)
            for account in config.accounts
            if account.requests_per_min
        }
        self._request_counts: Counter[str] = Counter()
        self._by_to: dict[str, list[SimulatedCall]] = defaultdict(list)
        self.by_sid: dict[str, SimulatedCall] = {}
        self.faults: Faults = config.faults
        self._is_closed = False

    # --- requests of a wire

    def wait_s(self, account: SimulatedAccount) -> float:
        """How long an account over its request limit has to wait."""
        window = self._windows.get(account.sid)
        return window.wait_s() if window else 0.0

    def has_room(self, account: SimulatedAccount) -> bool:
        if account.max_concurrent is None:
            return True
        live = sum(call.account is account and call.state != "ended" for call in self.by_sid.values())
        return live < account.max_concurrent

    def request(self, account: SimulatedAccount, order: CreateRequest, wire: Wire) -> Request:
        nth = self._request_counts[order.to]
        self._request_counts[order.to] += 1
        key = (self._config.seed, order.to, nth)
        known = magic(order.to)
        fault = known.reply if known else faulty.reply_fault(self.faults, *key)
        slow_s = faulty.slow_reply_s(self.faults, *key) if fault is ReplyFault.SLOW else 0.0
        return Request(account, order, wire, nth, fault, slow_s)

    def place(self, request: Request) -> SimulatedCall:
        queue = self._queues[request.account.sid]
        if len(queue) >= self._config.queue_max:
            raise QueueFullError
        now = self._ledger.now()
        call = SimulatedCall(
            sid=request.wire.new_call_id(),
            account=request.account,
            order=request.order,
            wire=request.wire,
            nth=request.nth,
            fate=self._fate(request),
            created_at=now,
            updated_at=now,
            queue_ms=int(queue.wait_s() * 1000),
        )
        if request.fault is ReplyFault.WEBHOOK_FIRST:
            call.lane.first_delivered = asyncio.Event()
        self._add(call)
        queue.add(call)
        return call

    def arrive(self, account: SimulatedAccount, order: CreateRequest, wire: Wire) -> SimulatedCall:
        """An inbound call to one of the account's numbers."""
        now = self._ledger.now()
        request = Request(account, order, wire, self._request_counts[order.from_], None, 0.0)
        self._request_counts[order.from_] += 1
        call = SimulatedCall(
            wire.new_call_id(), account, order, wire, request.nth, self._fate(request), now, now, 0, "ringing"
        )
        self._add(call)
        self._listen(call)
        call.answered = self._ledger.answer(call)
        call.task = self._activity.spawn(self._arrival(call))
        return call

    def hang_up(self, call: SimulatedCall, *, only_unanswered: bool) -> None:
        if call.state == "answered":
            if not only_unanswered:
                self._end(call, "completed", by="request")
            return
        if call.state == "queued":
            self._queues[call.account.sid].remove(call)
        self._end(call, "canceled")

    def end(self, call: SimulatedCall, reason: EndReason) -> None:
        """End the call now, whatever its fate."""
        if call.state == "queued":
            self._queues[call.account.sid].remove(call)
        if call.state != "ended":
            self._end(call, reason)

    def newest_first(self, to: str | None) -> list[SimulatedCall]:
        """The calls of the list: with a lag, the newest are missing."""
        visible_before = self._ledger.now() - self.faults.list_lag_s
        calls = self._by_to.get(to, []) if to else self.by_sid.values()
        return [call for call in reversed(list(calls)) if call.created_at <= visible_before]

    def queued(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def close(self) -> None:
        self._is_closed = True
        for queue in self._queues.values():
            queue.close()
        for call in self.by_sid.values():
            _stop_timer(call)

    # --- states of a call

    def _add(self, call: SimulatedCall) -> None:
        self.by_sid[call.sid] = call
        self._by_to[call.order.to].append(call)
        self._activity.begin()

    async def _arrival(self, call: SimulatedCall) -> None:
        verbs = await self._answered.document(call, call.order.answer_url)
        if not verbs or verbs[0] == HangUpOrder(unanswered=True):
            call.task = None
            self._end(call, "busy")
            return
        if _reaches_an_agent(verbs):
            call.dial = self._ledger.open(call)
        self._talk(call)
        await self._follow(call, verbs)

    def _listen(self, call: SimulatedCall) -> None:
        call.on_stream = lambda url: self._stream(call, url)
        call.on_stream_event = lambda stream, event: self._send_all(
            call, call.wire.stream_letters(call, stream, event), is_over=call.state == "ended"
        )

    def _stream(self, call: SimulatedCall, url: str) -> None:
        if call.dial is None:  # inbound, and on hold before it got an agent
            call.dial = self._ledger.open(call)
            call.dial.answered_at = self._ledger.now()
        call.dial.stream_url = url

    def _dial(self, call: SimulatedCall) -> None:
        call.dial = self._ledger.open(call)
        self._move(call, "initiated")
        self._after(call, self._config.setup_s, lambda: self._ring(call))

    def _ring(self, call: SimulatedCall) -> None:
        if call.fate.reaction == "failed":
            self._end(call, "failed")
            return
        self._move(call, "ringing")
        patience_s = call.order.ring_timeout_s
        if call.fate.reaction == "no_answer" or call.fate.ring_s >= patience_s:
            self._after(call, patience_s, lambda: self._end(call, "no_answer"))
        elif call.fate.reaction == "busy":
            self._after(call, call.fate.ring_s, lambda: self._end(call, "busy"))
        else:
            self._after(call, call.fate.ring_s, lambda: self._answer(call))

    def _answer(self, call: SimulatedCall) -> None:
        self._listen(call)
        call.answered = self._ledger.answer(call)
        self._talk(call)
        call.task = self._activity.spawn(self._follow(call))

    def _talk(self, call: SimulatedCall) -> None:
        if call.dial is not None:
            call.dial.answered_at = self._ledger.now()
        self._move(call, "answered")
        call.talk_left_s = min(call.fate.talk_s, call.order.time_limit_s)
        if self._config.patience_s and call.fate.is_patient:
            call.on_connected = lambda: self._connected(call)
            call.on_silence = lambda: self._silent(call)
            self._silent(call)
        else:
            self._leave_after_talk(call)

    def _connected(self, call: SimulatedCall) -> None:
        call.talks_since = asyncio.get_running_loop().time()
        self._leave_after_talk(call)

    def _silent(self, call: SimulatedCall) -> None:
        """The person has no agent: at first, or because the agent is gone and another may follow."""
        if call.state != "answered":
            return
        if call.talks_since is not None:
            talked_s = (asyncio.get_running_loop().time() - call.talks_since) / self._config.time_scale
            call.talk_left_s = max(0.0, call.talk_left_s - talked_s)
            call.talks_since = None
        if call.fate.silence_s is None:
            self._leave_after_talk(call, silent_s=self._config.patience_s)
        else:
            self._after(call, 0.0, lambda: self._leave(call), call.fate.silence_s)

    def _leave_after_talk(self, call: SimulatedCall, silent_s: float = 0.0) -> None:
        self._after(call, call.talk_left_s, lambda: self._leave(call), silent_s)

    def _leave(self, call: SimulatedCall) -> None:
        self._end(call, "completed", by="person")

    async def _follow(self, call: SimulatedCall, verbs: Sequence[Verb] | None = None) -> None:
        await self._answered.follow(call, verbs)
        call.task = None
        self._end(call, "completed")

    def _end(self, call: SimulatedCall, reason: EndReason, by: EndedBy = "carrier") -> None:
        _stop_timer(call)
        if call.task is not None:
            call.task.cancel()
        call.reason = reason
        if call.answered is not None:
            call.answered.ended_at, call.answered.ended_by = self._ledger.now(), by
        if call.dial is not None:
            call.dial.ended_at = self._ledger.now()
        self._move(call, "ended")
        self._activity.end()

    def _move(self, call: SimulatedCall, event: Event) -> None:
        call.state = event
        call.updated_at = self._ledger.now()
        if call.dial is not None:
            call.dial.status = call.reason or event
        self._send_all(call, call.wire.letters(call, event), is_over=event == "ended")

    def _send_all(self, call: SimulatedCall, letters: Sequence[Letter], *, is_over: bool) -> None:
        if self._is_closed:
            return
        for n, letter in enumerate(letters, 1):
            fault, late_s = self._webhook_fault(call)
            is_last = is_over and n == len(letters)
            self._webhooks.send(call.lane, letter, fault, late_s, last=is_last)
            call.sequence += 1

    # --- small parts

    def _fate(self, request: Request) -> Fate:
        person = request.order.person
        known = magic(person)
        return known.fate if known else fate(self._config.behaviour, self._config.seed, person, request.nth)

    def _webhook_fault(self, call: SimulatedCall) -> tuple[WebhookFault | None, float]:
        key = (self._config.seed, call.order.to, call.nth, call.sequence)
        known = magic(call.order.to)
        fault = known.webhook if known else faulty.webhook_fault(self.faults, *key)
        late_s = faulty.webhook_late_s(self.faults, *key) if fault is WebhookFault.LATE else 0.0
        return fault, late_s

    def _after(
        self, call: SimulatedCall, simulated_s: float, then: Callable[[], None], further_s: float = 0.0
    ) -> None:
        """`further_s` are real seconds, added to the simulated ones."""
        _stop_timer(call)
        real_s = simulated_s * self._config.time_scale + further_s
        call.timer = asyncio.get_running_loop().call_later(real_s, then)


def _reaches_an_agent(verbs: Sequence[Verb]) -> bool:
    return any(isinstance(verb, StreamOrder | Talk) for verb in verbs)


def _stop_timer(call: SimulatedCall) -> None:
    if call.timer is not None:
        call.timer.cancel()
        call.timer = None

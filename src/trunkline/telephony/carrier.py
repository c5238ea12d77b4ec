"""The interface between Trunkline and a carrier: every request, and every answer to it.

Answers are values. A carrier that is slow, full or broken is an expected outcome and never raises; an exception that
leaves a `Carrier` is a bug. No carrier has an idempotent create, so the answer that matters most is `InDoubt`: the
carrier may have dialled, and the lead must not be dialled again until the checker knows.
"""

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol
from uuid import UUID

import msgspec

from trunkline.model import CallReport
from trunkline.value import Private, Value

CallbackKind = Literal["status", "answer", "resume", "inbound", "recording", "machine", "stream"]
EventKind = Literal[
    "initiated", "ringing", "answered", "ended", "machine", "recording", "stream_began", "stream_failed", "stream_ended"
]  # fmt: skip
EndReason = Literal["completed", "busy", "no_answer", "failed", "canceled"]
CallState = Literal["queued", "ringing", "answered", "ended"]
Direction = Literal["outbound", "inbound"]

# What a refusal is about: the person called, calls of the account to that country, the caller's number, the account, or
# the network to the carrier. `unknown`: the carrier's code is in no table. `nobody`: the dial was not sent.
Blame = Literal["destination", "country", "number", "account", "network", "unknown", "nobody"]

DEFAULT_ACCOUNT = "default"


class ReservedAgent(Value, frozen=True):
    """The agent that was reserved with the dial: its pod's incarnation, and until when, in seconds of Unix time, it may
    be used without Postgres' confirmation."""

    incarnation: int
    until_s: int


class CallOrder(Value, frozen=True):
    """One dial of one attempt. The URLs carry the attempt id and its signature: see `callbacks`."""

    attempt_id: UUID
    to: Private[str]
    from_: Private[str]
    answer_url: Private[str]
    status_url: Private[str]
    ring_timeout_s: int
    time_limit_s: int
    # A CLOCK_BOOTTIME reading. The caller checks it before the request; the session checks it again when the connection
    # is open and the first byte is about to leave, because connecting may have taken seconds.
    send_by_boottime_s: float = math.inf
    # For carriers that can store metadata with the call (assistant variables, custom fields).
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    # The id of this attempt of a reminder, for carriers that can store it with the call. Empty: no reminder.
    idempotency_key: str = ""
    # Empty: no machine detection, no recording.
    machine_url: Private[str] = ""
    recording_url: Private[str] = ""
    # Requested when `answer_url` gave no document; the same call gets the same answer there. Empty: no fallback.
    fallback_url: Private[str] = ""
    # The end of the calling window. A call that is still queued at the carrier then must not ring any more.
    not_after: datetime | None = None
    # The agent that is reserved for it. Carriers without an answer URL per call store it with the call.
    agent: ReservedAgent | None = None


class Accepted(Value, frozen=True):
    """The carrier has the call. `queued_ms` is its own estimate of the wait before it dials; None: it gives none."""

    call_id: str
    queued_ms: int | None = 0


class Rejected(Value, frozen=True):
    """Certainly not dialled. `retryable`: this destination may be dialled again. `why`: for an operator."""

    reason: Literal["refused", "not_connected", "not_sent_in_time"]
    code: str
    retryable: bool
    blames: Blame
    why: str = ""


class Throttled(Value, frozen=True):
    """Certainly not dialled, and the whole account should slow down: too fast, or too many calls at once."""

    retry_after_s: float
    reason: Literal["pace", "concurrency"] = "pace"


class InDoubt(Value, frozen=True):
    """The carrier may have dialled."""

    reason: str


PlaceResult = Accepted | Rejected | Throttled | InDoubt


class CarrierCost(Value, frozen=True):
    """What the carrier charges for a call, by its own figure."""

    micros: int
    currency: str


class CallView(Value, frozen=True):
    """A call as the carrier itself shows it."""

    call_id: str
    to: Private[str]
    from_: Private[str]
    status: str
    state: CallState
    reason: EndReason | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration_s: int | None = None
    # Only if the carrier's own record carries the signed tag.
    attempt_id: UUID | None = None
    direction: Direction = "outbound"
    cost: CarrierCost | None = None
    # The carrier's code, if an ended call failed by the account's or the number's fault: as in its webhook.
    fault: str = ""


class NoSuchCall(Value, frozen=True):
    """The carrier answered, and has no such call."""


class Unavailable(Value, frozen=True):
    """The carrier did not answer the question: it did not reply, or with something that cannot be read. A list that
    could not be read to its end is unavailable too, because an incomplete one proves nothing. A retry is safe.

    `is_unauthorized`: the carrier answered, and refused these credentials.
    """

    reason: str
    is_unauthorized: bool = False


class HangUpAsked(Value, frozen=True):
    """The carrier accepted the request; its end webhook reports the end of the call."""

    status: str


class AlreadyOver(Value, frozen=True):
    """There was nothing left to hang up."""


NumbersResult = list[str] | Unavailable
LookUpResult = CallView | NoSuchCall | Unavailable
ListResult = list[CallView] | Unavailable
# A page of a list; or `Unavailable`, the last page of a list that is not complete.
ListPages = AsyncIterator[ListResult]
HangUpResult = HangUpAsked | AlreadyOver | NoSuchCall | Unavailable


class CallbackTag(Value, frozen=True):
    """The contents of a verified callback URL."""

    carrier: str
    kind: CallbackKind
    attempt_id: UUID | None
    account: str = DEFAULT_ACCOUNT
    # Of `resume`: which of the call's streams has ended, counted from 0. Others have none.
    turn: int = 0
    # Of `answer`: the agent that is reserved for the call, if one is, and how often the call has been on hold.
    agent: ReservedAgent | None = None
    held: int = 0


class WebhookRequest(Value, frozen=True):
    """A request as the public saw it: the URL with the public host and scheme, header names in lower case."""

    method: str
    url: Private[str]
    headers: Private[Mapping[str, str]]
    body: Private[bytes]
    # If the URL has been verified already. Never taken from the request itself.
    tag: CallbackTag | None = None


class CallEvent(Value, frozen=True):
    """One fact about one call. `dedupe_key` is the same for every delivery of the same fact."""

    call_id: str
    kind: EventKind
    callback: CallbackKind
    dedupe_key: str
    attempt_id: UUID | None = None
    # If the carrier stores it with the call, because there is no answer URL per call.
    agent: ReservedAgent | None = None
    # Further names of the same call, where a carrier gives one at create and another in its webhooks.
    alias_ids: tuple[str, ...] = ()
    # `call_id` is such a further name, and the webhook lacks the one given at create, so the two cannot be compared.
    is_leg_id: bool = False
    sequence: int | None = None
    carrier_status: str = ""
    reason: EndReason | None = None
    # The carrier's code, if the call failed by the account's or the number's fault, such as an account without credit.
    fault: str = ""
    duration_s: int | None = None
    answered_by: str | None = None
    direction: Direction = "outbound"
    to: Private[str] = ""
    from_: Private[str] = ""
    at: datetime | None = None
    # The carrier's own fields without personal ones: safe to store and to show.
    raw: Mapping[str, str] = msgspec.field(default_factory=dict)
    # With the end of a call whose agent the carrier runs.
    report: CallReport | None = None
    cost: CarrierCost | None = None


class Forged(Value, frozen=True):
    """Not from the carrier, not for this platform, or too old. Respond with its status and store nothing of it."""

    reason: str
    # 401 if the carrier sends user name and password only after a challenge.
    status: Literal[401, 403] = 403


class Unreadable(Value, frozen=True):
    """From the carrier, but unreadable. Store it apart: the carrier may have added a new value."""

    reason: str


WebhookResult = CallEvent | Forged | Unreadable


class Document(Value, frozen=True):
    """The instructions that the carrier executes on a call."""

    content_type: str
    body: str
    status: int = 200


class AnswerFallback(Value, frozen=True):
    """The operator's instructions for an answered call that gets no agent and may not wait.

    The scheme of `url` says what it is: `https:` another document, `wss:` a stream, `tel:` and `sip:` a number to dial.
    If the carrier cannot do that, or there is no URL, it plays the message and hangs up.
    """

    url: str = ""
    message: str = "All agents are currently busy. Please try again later."


@dataclass(frozen=True, slots=True)
class Limits:
    """A carrier's default limits; an account may have higher ones."""

    starts_per_s: float
    # True: the carrier queues calls over its pace and dials them later, when they may have been written off.
    queues_excess: bool
    # How long after a dial its call may be missing from the list. Part of the horizon of `absent`.
    list_lag_s: float
    # False: a call ends by its document, its stream or its time limit, and by no request of the platform.
    can_hang_up: bool = True
    # How many queries about calls, single ones or pages, the account may send beside its dials.
    looks_per_min: float = 60.0
    # Whether a list returns many calls per request: only those that are live, all since a time, or (`none`) only ids,
    # so that each call needs a query of its own.
    lists: Literal["live", "all", "none"] = "all"
    # The cost of a call is not in its webhooks: it is in the list, some time after the end.
    prices_later: bool = False


class Documents(Protocol):
    """Writes a carrier's documents. That needs no account: `documents` finds the writer by the carrier's name alone."""

    @property
    def name(self) -> str: ...

    @property
    def streams(self) -> bool:
        """Whether an answered call is connected to a pod. If not, the carrier runs the agent itself."""

    @property
    def can_hold(self) -> bool:
        """Whether a call can wait and request a document again. If not, `hold_document` says that no agent is free."""

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        """`then_url`: requested when the stream ended and the call did not. `status_url`: where the carrier reports
        that the stream began, failed or ended. Each if the carrier can do that."""

    def hold_document(self, wait_s: int, again_url: str) -> Document: ...

    def busy_document(self, message: str) -> Document: ...

    def hang_up_document(self) -> Document: ...

    def reject_document(self) -> Document:
        """Refuse an inbound call, without answering it if the carrier can do that."""

    def redirect_document(self, to: str) -> Document:
        """Forward the caller to another number."""

    def fallback_document(self, fallback: AnswerFallback) -> Document:
        """For an answered call that gets no agent. It does not depend on the call, so it can be built in advance."""


class Carrier(Documents, Protocol):
    """One account at one carrier. Holds its HTTP session: close it with `aclose`."""

    @property
    def limits(self) -> Limits: ...

    @property
    def terminal_statuses(self) -> frozenset[str]: ...

    async def place(self, order: CallOrder) -> PlaceResult:
        """Request one call, once. Never retried, never redirected. If it is cancelled meanwhile, it is in doubt."""

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult: ...

    async def look_up(self, call_id: str) -> LookUpResult: ...

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """Every call of this pair since then, in every state: queued, live and ended."""

    def account_calls(self, since: datetime) -> ListPages:
        """Every call of the account since then, in every state and direction, page by page. A call that changes state
        meanwhile may appear twice; the later view is newer."""

    def live_calls(self, since: datetime) -> ListPages:
        """Every live call of the account, page by page, whenever it began; if the carrier cannot filter by that, all
        calls since then. A call that is missing need not be over: look it up."""

    def ended_calls(self, since: datetime, until: datetime) -> ListPages:
        """Calls of the account that ended in this time, page by page; if the carrier cannot filter by that, all calls
        since then."""

    async def own_numbers(self) -> NumbersResult:
        """The numbers of the account that can make calls, as E.164."""

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        """Verify, then parse. An unverified body is not parsed."""

    def entry_url(self, url: str) -> str:
        """A callback URL as the operator enters it at the carrier, with the password if the carrier needs one."""

    def media_authorization(self, url: str) -> str | None:
        """The Authorization header for a recording of the account. None: that host gets no credentials."""

    async def aclose(self) -> None: ...

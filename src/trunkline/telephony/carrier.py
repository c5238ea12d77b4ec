"""The seam between Trunkline and a carrier: what we ask of one, and every answer it can give.

Answers are values. A carrier that is slow, full or broken is an expected outcome and never raises; an
exception that leaves a `Carrier` is a bug of ours. No carrier has an idempotent create, so the answer that
matters most is `InDoubt`: it may have dialled, and nobody may dial again until that is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

CallbackKind = Literal["status", "answer", "inbound", "recording", "machine"]
EventKind = Literal["initiated", "ringing", "answered", "ended", "machine", "recording"]
EndReason = Literal["completed", "busy", "no_answer", "failed", "canceled"]
CallState = Literal["queued", "ringing", "answered", "ended"]
Direction = Literal["outbound", "inbound"]

DEFAULT_ACCOUNT = "default"


@dataclass(frozen=True, slots=True)
class CallOrder:
    """One dial of one attempt. The URLs carry the attempt id and its signature: see `callbacks`."""

    attempt_id: UUID
    to: str = field(repr=False)
    from_: str = field(repr=False)
    answer_url: str = field(repr=False)
    status_url: str = field(repr=False)
    ring_timeout_s: int
    time_limit_s: int
    # A CLOCK_BOOTTIME reading. The caller checks it before it asks; it is checked again when the connection
    # is open and the first byte is about to leave, because connecting may have taken seconds.
    send_by_boottime_s: float | None = None
    # For carriers that can store our words beside the call (assistant variables, custom fields).
    metadata: Mapping[str, str] = field(default_factory=dict)
    # Empty: nobody asks whether a machine answered, nothing is recorded.
    machine_url: str = field(default="", repr=False)
    recording_url: str = field(default="", repr=False)
    # The end of the calling window. A call that still waits at the carrier then must not ring any more.
    not_after: datetime | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The carrier has the call. `queued_ms` is what it says it will wait before it dials; None: it does not say."""

    call_id: str
    queued_ms: int | None = 0

    @property
    def is_queued(self) -> bool:
        return self.queued_ms != 0


@dataclass(frozen=True, slots=True)
class Rejected:
    """Certainly not dialled. `retryable`: refused for the moment or the account, not for this destination."""

    reason: Literal["refused", "not_connected", "not_sent_in_time"]
    code: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Throttled:
    """Certainly not dialled, and the whole account should slow down: too fast, or too many calls at once."""

    retry_after_s: float
    reason: Literal["pace", "concurrency"] = "pace"


@dataclass(frozen=True, slots=True)
class InDoubt:
    """It may have dialled."""

    reason: str


PlaceResult = Accepted | Rejected | Throttled | InDoubt


@dataclass(frozen=True, slots=True)
class CallView:
    """A call as the carrier itself shows it."""

    call_id: str
    to: str = field(repr=False)
    from_: str = field(repr=False)
    status: str
    state: CallState
    reason: EndReason | None = None
    created_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    duration_s: int | None = None
    # Only where the carrier's own record carries our tag.
    attempt_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class NoSuchCall:
    """The carrier answered, and it does not know this call."""


@dataclass(frozen=True, slots=True)
class LookUpUnavailable:
    reason: str


@dataclass(frozen=True, slots=True)
class ListUnavailable:
    """The list could not be read to its end. An incomplete list proves nothing, so none is given."""

    reason: str


@dataclass(frozen=True, slots=True)
class HangUpAsked:
    """The carrier took the request; its end webhook says when the call is over."""

    status: str


@dataclass(frozen=True, slots=True)
class AlreadyOver:
    """There was nothing left to hang up."""


@dataclass(frozen=True, slots=True)
class HangUpUnavailable:
    """Not known whether it was hung up. Asking again is safe."""

    reason: str


@dataclass(frozen=True, slots=True)
class NumbersUnavailable:
    """`is_unauthorized`: the carrier answered, and does not know these credentials."""

    reason: str
    is_unauthorized: bool = False


NumbersResult = list[str] | NumbersUnavailable
LookUpResult = CallView | NoSuchCall | LookUpUnavailable
ListResult = list[CallView] | ListUnavailable
HangUpResult = HangUpAsked | AlreadyOver | NoSuchCall | HangUpUnavailable


@dataclass(frozen=True, slots=True)
class CallbackTag:
    """What a verified callback URL says."""

    carrier: str
    kind: CallbackKind
    attempt_id: UUID | None
    account: str = DEFAULT_ACCOUNT


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """A request as the public saw it: the URL with the public host and scheme, header names in lower case."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    # Where the URL has been verified already. Never taken from the request itself.
    tag: CallbackTag | None = None


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What an agent that the carrier runs itself found out. Other agents report to the API."""

    disposition: str | None = None
    opt_out: bool = False
    callback_at: datetime | None = None
    transcript_ref: str | None = None
    recording_ref: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class CallEvent:
    """One fact about one call. `dedupe_key` is the same for every delivery of the same fact."""

    call_id: str
    kind: EventKind
    callback: CallbackKind
    dedupe_key: str
    attempt_id: UUID | None = None
    # Further names of the same call, where a carrier gives one at create and another in its webhooks.
    alias_ids: tuple[str, ...] = ()
    sequence: int | None = None
    carrier_status: str = ""
    reason: EndReason | None = None
    duration_s: int | None = None
    answered_by: str | None = None
    direction: Direction = "outbound"
    to: str = field(default="", repr=False)
    from_: str = field(default="", repr=False)
    at: datetime | None = None
    # The carrier's own words without the personal ones: safe to store and to show.
    raw: Mapping[str, str] = field(default_factory=dict)
    # With the end of a call whose agent is the carrier's own.
    report: AgentReport | None = None


@dataclass(frozen=True, slots=True)
class Forged:
    """Not from the carrier, not for us, or too old. Answer with its status and keep nothing of it."""

    reason: str
    # 401 where the carrier sends a name and a password only after it was asked for them.
    status: Literal[401, 403] = 403


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Truly from the carrier, yet not understood. Keep it aside: the carrier may have learnt a new word."""

    reason: str


WebhookResult = CallEvent | Forged | Unreadable


@dataclass(frozen=True, slots=True)
class Document:
    """What the carrier executes when it asks what to do with a call."""

    content_type: str
    body: str
    status: int = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """A carrier's own pace by default; an account may be allowed more."""

    starts_per_s: float
    # True: what is over the pace waits at the carrier and is dialled later, long after we gave up on it.
    queues_excess: bool
    # How long after a dial its call may be missing from the list. Part of the horizon of `absent`.
    list_lag_s: float
    # False: a call ends by its document, its stream or its time limit, and by no request of ours.
    can_hang_up: bool = True


class Carrier(Protocol):
    """One account at one carrier. Holds its HTTP session: close it with `aclose`."""

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def terminal_statuses(self) -> frozenset[str]: ...

    @property
    def streams(self) -> bool:
        """Whether an answered call is connected to a pod. If not, the carrier runs the agent itself."""
        ...

    async def place(self, order: CallOrder) -> PlaceResult:
        """Ask for one call, once. Never retried, never redirected. Cancelled in between, it is in doubt."""
        ...

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult: ...

    async def look_up(self, call_id: str) -> LookUpResult: ...

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """Every call of this pair since then, in every state: queued, live and ended."""
        ...

    async def own_numbers(self) -> NumbersResult:
        """The numbers of the account that can make calls, as E.164."""
        ...

    def parse_webhook(self, request: WebhookRequest) -> WebhookResult:
        """Verify, then read. Nothing of an unverified body is interpreted."""
        ...

    def entry_url(self, url: str) -> str:
        """A callback URL as the operator enters it at the carrier, with the password where one is asked for."""
        ...

    def media_authorization(self, url: str) -> str | None:
        """The Authorization header with which a recording of the account is fetched. None: that host is not told."""
        ...

    def answer_document(self, stream_url: str, parameters: Mapping[str, str]) -> Document: ...

    def hold_document(self, wait_s: int, again_url: str) -> Document: ...

    def busy_document(self, message: str) -> Document: ...

    def hang_up_document(self) -> Document: ...

    def reject_document(self) -> Document:
        """Refuse a call that rings at us, without answering it where the carrier can."""
        ...

    def redirect_document(self, to: str) -> Document:
        """Send the caller on to another number."""
        ...

    async def aclose(self) -> None: ...

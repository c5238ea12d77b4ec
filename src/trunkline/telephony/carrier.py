"""The seam between Trunkline and a carrier: what we ask of one, and every answer it can give.

Answers are values. A carrier that is slow, full or broken is an expected outcome and never raises; an
exception that leaves a `Carrier` is a bug of ours. No carrier has an idempotent create, so the answer that
matters most is `InDoubt`: it may have dialled, and nobody may dial again until that is known.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

import msgspec

from trunkline.value import Private, Value

CallbackKind = Literal["status", "answer", "resume", "inbound", "recording", "machine", "stream"]
EventKind = Literal[
    "initiated", "ringing", "answered", "ended", "machine", "recording", "stream_began", "stream_failed", "stream_ended"
]  # fmt: skip
EndReason = Literal["completed", "busy", "no_answer", "failed", "canceled"]
CallState = Literal["queued", "ringing", "answered", "ended"]
Direction = Literal["outbound", "inbound"]

# Whom a refusal is about: the person called, calls of the account to that country, our number, the account, or the way
# to the carrier. `unknown`: the carrier's word is in no table. `nobody`: we ourselves did not send it.
Blame = Literal["destination", "country", "number", "account", "network", "unknown", "nobody"]

DEFAULT_ACCOUNT = "default"


class KeptAgent(Value, frozen=True):
    """The agent that was kept when the call was dialled: the number of its pod's process, and until when, in seconds
    of Unix time, that counts while nobody can ask Postgres whether it still holds."""

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
    # A CLOCK_BOOTTIME reading. The caller checks it before it asks; it is checked again when the connection
    # is open and the first byte is about to leave, because connecting may have taken seconds.
    send_by_boottime_s: float | None = None
    # For carriers that can store our words beside the call (assistant variables, custom fields).
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    # Our name of this attempt of a reminder, for carriers that can keep it beside the call. Empty: it is none.
    idempotency_key: str = ""
    # Empty: nobody asks whether a machine answered, nothing is recorded.
    machine_url: Private[str] = ""
    recording_url: Private[str] = ""
    # Asked when `answer_url` gave no document; the same call gets the same answer there. Empty: nobody else is asked.
    fallback_url: Private[str] = ""
    # The end of the calling window. A call that still waits at the carrier then must not ring any more.
    not_after: datetime | None = None
    # The agent that is kept for it. Carriers that are given no answer URL of the call's own keep it beside the call.
    agent: KeptAgent | None = None


class Accepted(Value, frozen=True):
    """The carrier has the call. `queued_ms` is what it says it will wait before it dials; None: it does not say."""

    call_id: str
    queued_ms: int | None = 0


class Rejected(Value, frozen=True):
    """Certainly not dialled. `retryable`: this destination may be asked for again. `why`: for an operator."""

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
    """It may have dialled."""

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
    # Only where the carrier's own record carries our tag.
    attempt_id: UUID | None = None
    direction: Direction = "outbound"
    cost: CarrierCost | None = None
    # The carrier's code, where an ended call failed for our sake: as in its webhook.
    fault: str = ""


class NoSuchCall(Value, frozen=True):
    """The carrier answered, and it does not know this call."""


class LookUpUnavailable(Value, frozen=True):
    reason: str


class ListUnavailable(Value, frozen=True):
    """The list could not be read to its end. An incomplete list proves nothing, so none is given."""

    reason: str


class HangUpAsked(Value, frozen=True):
    """The carrier took the request; its end webhook says when the call is over."""

    status: str


class AlreadyOver(Value, frozen=True):
    """There was nothing left to hang up."""


class HangUpUnavailable(Value, frozen=True):
    """Not known whether it was hung up. Asking again is safe."""

    reason: str


class NumbersUnavailable(Value, frozen=True):
    """`is_unauthorized`: the carrier answered, and does not know these credentials."""

    reason: str
    is_unauthorized: bool = False


NumbersResult = list[str] | NumbersUnavailable
LookUpResult = CallView | NoSuchCall | LookUpUnavailable
ListResult = list[CallView] | ListUnavailable
# A page of a list, or why there is no more of it: then the list is not complete, and this is its last page.
ListPages = AsyncIterator[ListResult]
HangUpResult = HangUpAsked | AlreadyOver | NoSuchCall | HangUpUnavailable


class CallbackTag(Value, frozen=True):
    """What a verified callback URL says."""

    carrier: str
    kind: CallbackKind
    attempt_id: UUID | None
    account: str = DEFAULT_ACCOUNT
    # Of `resume`: which of the call's streams is over, counted from 0. Others have none.
    turn: int = 0
    # Of `answer`: the agent that is kept for the call, if one is, and how often the call has been on hold.
    agent: KeptAgent | None = None
    held: int = 0


class WebhookRequest(Value, frozen=True):
    """A request as the public saw it: the URL with the public host and scheme, header names in lower case."""

    method: str
    url: Private[str]
    headers: Private[Mapping[str, str]]
    body: Private[bytes]
    # Where the URL has been verified already. Never taken from the request itself.
    tag: CallbackTag | None = None


class AgentReport(Value, frozen=True):
    """What an agent that the carrier runs itself found out. Other agents report to the API."""

    disposition: str | None = None
    opt_out: bool = False
    callback_at: datetime | None = None
    transcript_ref: str | None = None
    recording_ref: str | None = None
    data: Private[Mapping[str, Any]] = msgspec.field(default_factory=dict)


class CallEvent(Value, frozen=True):
    """One fact about one call. `dedupe_key` is the same for every delivery of the same fact."""

    call_id: str
    kind: EventKind
    callback: CallbackKind
    dedupe_key: str
    attempt_id: UUID | None = None
    # Where the carrier keeps it beside the call, and no URL of the call's own names it.
    agent: KeptAgent | None = None
    # Further names of the same call, where a carrier gives one at create and another in its webhooks.
    alias_ids: tuple[str, ...] = ()
    # `call_id` is such a further name, and the one given at create is not told: it cannot be compared with that.
    is_leg_id: bool = False
    sequence: int | None = None
    carrier_status: str = ""
    reason: EndReason | None = None
    # The carrier's code, if the call failed for our sake: an account without credit, a number that is not ours.
    fault: str = ""
    duration_s: int | None = None
    answered_by: str | None = None
    direction: Direction = "outbound"
    to: Private[str] = ""
    from_: Private[str] = ""
    at: datetime | None = None
    # The carrier's own words without the personal ones: safe to store and to show.
    raw: Mapping[str, str] = msgspec.field(default_factory=dict)
    # With the end of a call whose agent is the carrier's own.
    report: AgentReport | None = None
    cost: CarrierCost | None = None


class Forged(Value, frozen=True):
    """Not from the carrier, not for us, or too old. Answer with its status and keep nothing of it."""

    reason: str
    # 401 where the carrier sends a name and a password only after it was asked for them.
    status: Literal[401, 403] = 403


class Unreadable(Value, frozen=True):
    """Truly from the carrier, yet not understood. Keep it aside: the carrier may have learnt a new word."""

    reason: str


WebhookResult = CallEvent | Forged | Unreadable


class Document(Value, frozen=True):
    """What the carrier executes when it asks what to do with a call."""

    content_type: str
    body: str
    status: int = 200


class AnswerFallback(Value, frozen=True):
    """What the operator wants done with an answered call for which there is no agent and no waiting.

    The scheme of `url` says what it is: `https:` another document, `wss:` a stream, `tel:` and `sip:` somebody to dial.
    Where a carrier cannot do that, or there is no URL, it says the message and hangs up.
    """

    url: str = ""
    message: str = "All agents are currently busy. Please try again later."


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
    # How often the account may be asked about its calls, one by one or by the page, beside all that dialling asks for.
    looks_per_min: float = 60.0
    # Whether its lists tell of many calls with one request: of those alone that are not over, of all since a moment, or
    # (`none`) only their ids, so that each has to be asked about.
    lists: Literal["live", "all", "none"] = "all"
    # What a call cost is not in its webhooks: it is in the list, some time after the end.
    prices_later: bool = False


class Documents(Protocol):
    """How a carrier is told what to do with a call. Its language needs no account: `documents` knows it by the
    carrier's name alone."""

    @property
    def name(self) -> str: ...

    @property
    def streams(self) -> bool:
        """Whether an answered call is connected to a pod. If not, the carrier runs the agent itself."""
        ...

    @property
    def can_hold(self) -> bool:
        """Whether a call can wait and ask again. If not, `hold_document` tells it that there is nobody."""
        ...

    def answer_document(
        self, stream_url: str, parameters: Mapping[str, str], then_url: str = "", status_url: str = ""
    ) -> Document:
        """`then_url`: what the carrier asks when the stream is over and the call is not. `status_url`: where it reports
        that the stream began, failed or ended. Each where the carrier can."""
        ...

    def hold_document(self, wait_s: int, again_url: str) -> Document: ...

    def busy_document(self, message: str) -> Document: ...

    def hang_up_document(self) -> Document: ...

    def reject_document(self) -> Document:
        """Refuse a call that rings at us, without answering it where the carrier can."""
        ...

    def redirect_document(self, to: str) -> Document:
        """Send the caller on to another number."""
        ...

    def fallback_document(self, fallback: AnswerFallback) -> Document:
        """For an answered call that gets no agent. It needs nothing of the call, so it can be built ahead."""
        ...


class Carrier(Documents, Protocol):
    """One account at one carrier. Holds its HTTP session: close it with `aclose`."""

    @property
    def limits(self) -> Limits: ...

    @property
    def terminal_statuses(self) -> frozenset[str]: ...

    async def place(self, order: CallOrder) -> PlaceResult:
        """Ask for one call, once. Never retried, never redirected. Cancelled in between, it is in doubt."""
        ...

    async def hang_up(self, call_id: str, *, only_unanswered: bool = False) -> HangUpResult: ...

    async def look_up(self, call_id: str) -> LookUpResult: ...

    async def list_calls(self, to: str, from_: str, since: datetime) -> ListResult:
        """Every call of this pair since then, in every state: queued, live and ended."""
        ...

    def account_calls(self, since: datetime) -> ListPages:
        """Every call of the account since then, in every state and direction, page by page. A call that moves on while
        the list is read may be shown twice; what is shown later is newer."""
        ...

    def live_calls(self, since: datetime) -> ListPages:
        """Every call of the account that is not over, page by page, whenever it began; where the carrier cannot be
        asked for these alone, all calls since then. One that is not shown need not be over: look it up."""
        ...

    def ended_calls(self, since: datetime, until: datetime) -> ListPages:
        """Calls of the account that ended in this time, page by page; where the carrier cannot be asked for these
        alone, all calls since then."""
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

    async def aclose(self) -> None: ...

"""The values that components exchange. No behaviour beyond reading them, no I/O."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
import uuid_utils
from uuid_utils.compat import uuid7

from trunkline.states import AttemptState
from trunkline.value import Private, Value


def new_id() -> UUID:
    """Ids grow with time, so that inserts go to the right edge of their indexes."""
    return uuid7()


def new_text_id() -> str:
    """The same as text, at 10 % of the cost."""
    return str(uuid_utils.uuid7())


class Flow(Value, frozen=True):
    """The leads of one merchant and campaign in a pool: the unit of fairness."""

    pool_id: str
    reseller_id: str
    merchant_id: str
    campaign_id: UUID | None = None

    def __str__(self) -> str:
        return f"{self.pool_id}/{self.reseller_id}/{self.merchant_id}/{self.campaign_id or ''}"

    @classmethod
    def parse(cls, text: str) -> "Flow":
        pool_id, reseller_id, merchant_id, campaign = text.split("/")
        return cls(pool_id, reseller_id, merchant_id, UUID(campaign) if campaign else None)


class Entry(Value, frozen=True):
    """A lead as the schedule needs it."""

    lead_id: UUID
    version: int
    flow: Flow
    due_at: datetime
    priority: int = 50
    # The end of its calling window, after which it must not be granted.
    closes_at: datetime | None = None
    # The overflow pool, when its own pool has had no channel for it for the configured time.
    next_pool_id: str | None = None
    moves_after_s: float | None = None
    # Where the callee is, if its pool prefers numbers of the same region.
    region: str | None = None


class Grant(Value, frozen=True):
    """A lead paired with a free channel, held under the attempt's id."""

    attempt_id: UUID
    lead_id: UUID
    version: int
    number_id: UUID
    channel_no: int
    due_ms: int
    # When it was granted, by Postgres' clock. A grant of unknown age counts as fresh.
    granted_ms: int | None = None
    # The lead's merchant, which decides which agents may take its call.
    merchant_id: str = ""
    # None: no campaign, or unknown.
    campaign_id: UUID | None = None
    # When everything that the lead needs was available: its lateness counts from then. None: from its due time.
    ready_ms: int | None = None


class Slot(Value, frozen=True):
    """A pod's capacity for one call: the `no`-th, 1 for an exclusive pod. `incarnation` is the number of the process
    that has the pod's name now; a reservation of an older one is lost."""

    pod: str
    no: int
    incarnation: int
    # The pool of the slot, as in the router's responses: `pool:gold`, `merchant:acme`.
    source_pool: str = ""


class FreeSlots(Value, frozen=True):
    """Slots that dials could reserve now: of the tiers that every merchant falls back to, together, and of tiers that
    only some merchants have. A hint for the match: the intent decides."""

    common: int
    own: Mapping[str, int]

    @property
    def is_none(self) -> bool:
        return self.common <= 0 and not any(count > 0 for count in self.own.values())


class NumberLimit(Value, frozen=True):
    """The limits of a number. A maximum of 0 keeps it from dialling."""

    number_id: UUID
    pool_id: str
    max_channels: int
    # Only in a pool that prefers numbers of the callee's region.
    region: str | None = None
    # `carrier/account`: the account's limit of starts applies to all its numbers together.
    account: str = ""


class Holder(Value, frozen=True):
    """The call that holds a channel. An inbound call has no lead and no flow."""

    attempt_id: UUID
    number_id: UUID
    channel_no: int
    lead_id: UUID | None = None
    flow: Flow | None = None
    granted_ms: int = 0


class Intent(Value, frozen=True):
    """An attempt that is committed and may be sent, once."""

    attempt_id: UUID
    lead_id: UUID
    carrier: str
    account: str
    to_phone: Private[str]
    from_phone: Private[str]
    due_at: datetime
    # Its turn in the paces of its account, number and campaign, by Postgres' clock, and in how many seconds that is.
    send_at: datetime
    send_in_s: float
    # The end of its calling window: a call that still waits at the carrier then must not ring any more.
    closes_at: datetime | None = None
    # JSON: variables of the assistant, if the carrier runs the agent.
    payload: Private[str | None] = None
    # Its number among the lead's attempts; an attempt that does not count has the same number as the next.
    attempt_no: int = 1
    # The slot that is reserved for it; None if it needs none, or may do without.
    slot: Slot | None = None
    # The minimum ring time by the rule packs.
    ring_min_s: int = 0
    # When everything that the call needs was available; None: when it was due.
    ready_at: datetime | None = None
    # Its outbound number, and whether it is a probe of a cooldown.
    number_id: UUID | None = None
    is_probe: bool = False


def idempotency_key(occurrence_id: str, attempt_no: int, attempt_id: UUID) -> str:
    """The key of one attempt of an occurrence of a reminder: `{id}-{attempt}-{8 hex}`. The eight digits are of the
    attempt's id, so that the key identifies it. The carrier gets the same key."""
    return f"{occurrence_id}-{attempt_no}-{attempt_id.hex[-8:]}"


class PersonQuestion(Value, frozen=True):
    """Count the calls to a person in a window: those of a merchant, or (None) of all tenants."""

    phone: Private[str]
    merchant_id: str | None
    max_calls: int
    window_s: int
    asked_by: str


class PersonCalls(Value, frozen=True):
    """The answer: at most `max_calls` of the newest placed calls, and whether all are the asking merchant's own."""

    calls: int
    oldest_at: datetime | None
    all_own: bool


class CallFacts(Value, frozen=True):
    """The facts of one attempt. Facts are only ever added."""

    state: AttemptState
    call_id: str | None = None
    ringing_at: datetime | None = None
    answered_at: datetime | None = None
    ended_at: datetime | None = None
    end_reason: str | None = None
    duration_s: int | None = None
    # None: not reported.
    is_machine: bool | None = None
    # From the document that the carrier got: False, without an agent; True, with an external agent.
    agent_joined: bool | None = None
    # The carrier reported that the stream to the agent began; False: that it could not be opened.
    stream_began: bool | None = None
    # The agent of the call, concluded when it ends. None: not answered, or live.
    agent: "Agent | None" = None
    # The cost by the carrier's own figure.
    carrier_cost_micros: int | None = None
    carrier_cost_currency: str | None = None


class Agent(StrEnum):
    """Which agent took an answered call."""

    # A pod's: it named the call, read its context or reported on it, or the carrier reported that its stream began.
    JOINED = "joined"
    # One that the platform does not see: the carrier's own, or an external one of the operator.
    EXTERNAL = "external"
    # None took it.
    NONE = "none"
    # There is no evidence either way.
    UNKNOWN = "unknown"


# Carriers that run the agent themselves: their calls need no pod.
STREAMLESS = frozenset({"vapi"})


class CallReport(Value, frozen=True):
    """An agent's report on its call. References are stored as they are: the platform does not open them."""

    disposition: str | None = None
    opt_out: bool = False
    callback_at: datetime | None = None
    transcript_ref: str | None = None
    recording_ref: str | None = None
    data: Private[Mapping[str, Any]] = msgspec.field(default_factory=dict)


class Counted(Value, frozen=True):
    """Calls of a period: those that ended, were answered, were answered by a person, and of these the abandoned."""

    ended: int = 0
    answered: int = 0
    by_person: int = 0
    abandoned: int = 0

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(
            self.ended + other.ended,
            self.answered + other.answered,
            self.by_person + other.by_person,
            self.abandoned + other.abandoned,
        )

    @property
    def abandoned_share(self) -> float | None:
        """None while no person has answered."""
        return max(0, self.abandoned) / self.by_person if self.by_person > 0 else None


class Outcome(StrEnum):
    """How a lead can end: not dialled, during the call, in the session.

    NO_AGENT: answered, but the call got no agent. BUSY: the callee was busy. Their former names are in
    `leads.retries.LEGACY`.
    """

    PRECHECK_FAILED = "PRECHECK_FAILED"
    BLACKLISTED = "BLACKLISTED"
    NUMBER_UNAVAILABLE = "NUMBER_UNAVAILABLE"
    INVALID_PHONE = "INVALID_PHONE"
    NO_CONFIG = "NO_CONFIG"
    CALL_LIMIT_REACHED = "CALL_LIMIT_REACHED"
    ABORTED = "ABORTED"
    EXPIRED = "EXPIRED"
    NO_ANSWER = "NO_ANSWER"
    BUSY = "BUSY"
    CARRIER_ERROR = "CARRIER_ERROR"
    UNKNOWN = "UNKNOWN"
    ANSWERED = "ANSWERED"
    NO_AGENT = "NO_AGENT"
    EARLY_HANGUP = "EARLY_HANGUP"
    TRANSFERRED = "TRANSFERRED"
    VOICEMAIL = "VOICEMAIL"


class Budget(Value, frozen=True):
    """How often a lead was tried, this attempt included, and its maximum."""

    attempt_count: int
    max_attempts: int
    carrier_error_count: int
    # How often it was answered without an agent: that does not count as an attempt.
    no_agent_count: int = 0


class Finish(Value, frozen=True):
    """The lead ends here. `word` is the agent's own outcome, which replaces the platform's."""

    outcome: Outcome
    reason: str | None = None
    word: str | None = None


class Retry(Value, frozen=True):
    """The lead is due again. An attempt that the carrier never accepted, or that got no agent (`no_agent`), does not
    count against the lead."""

    delay_s: float
    carrier_error: bool = False
    counted: bool = True
    no_agent: bool = False


LeadDecision = Finish | Retry


class RefusalReason(StrEnum):
    # The grant and Postgres disagree.
    LEAD = "lead"
    NOT_DUE = "not_due"
    STALE_GRANT = "stale_grant"
    CHANNEL = "channel"
    PERSON = "person"
    # The gates.
    PAUSED = "paused"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    EXPIRED = "expired"
    BLACKLISTED = "blacklisted"
    DESTINATION = "destination"
    WINDOW = "window"
    PRECHECK = "precheck"
    LIMIT = "limit"
    SPEND = "spend"
    AGENTS = "agents"
    PACE = "pace"
    # The account or number that the call would use is in a cooldown.
    COOLDOWN = "cooldown"
    # Postgres was busy, or our code has a bug.
    CONTENDED = "contended"
    ERROR = "error"


# The grant was out of date, Postgres was busy, or our code has a bug: nothing that a lead has to wait for.
_OUR_FAILING = frozenset(
    {
        RefusalReason.LEAD,
        RefusalReason.NOT_DUE,
        RefusalReason.STALE_GRANT,
        RefusalReason.CONTENDED,
        RefusalReason.ERROR,
    }
)
# The subject of a refusal because another call took the proposed agent.
SLOT_TAKEN = "slot_taken"


class Blocks(StrEnum):
    """What cannot be granted before `until`."""

    LEAD = "lead"
    PERSON = "person"
    FLOW = "flow"
    CHANNEL = "channel"
    NUMBER = "number"
    ACCOUNT = "account"


class Refusal(Value, frozen=True):
    """Why a lead is not called now. The gates make it, the store writes it with its lead, and Valkey blocks its cause,
    so that the match does not grant it again at once. Without `until`: until another event. `finish` ends the lead,
    `due_at` moves it; with neither, the lead does not change."""

    reason: RefusalReason
    blocks: Blocks = Blocks.LEAD
    until: datetime | None = None
    subject: str | None = None
    # The attempt that blocks this one.
    owner: UUID | None = None
    finish: Finish | None = None
    due_at: datetime | None = None
    # The end of the calling window that begins at `due_at`.
    closes_at: datetime | None = None
    # The lead's new entry, with its new version, once Postgres has moved it.
    moved: Entry | None = None

    @property
    def is_wait(self) -> bool:
        """Whether the lead has to wait for something. If not, the platform failed, and the lateness keeps counting."""
        return self.reason not in _OUR_FAILING and self.subject != SLOT_TAKEN

    @property
    def is_gone(self) -> bool:
        """Whether no dialer may call this version of the lead any more."""
        is_other = self.reason is RefusalReason.LEAD and self.until is None
        return is_other or self.moved is not None or self.finish is not None

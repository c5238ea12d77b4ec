"""Why a grant was refused. The reason says what it blocks, so that the match does not grant it again at once."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from trunkline.model import Entry, Finish, Grant
from trunkline.value import Value


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
SLOT_TAKEN = "slot_taken"


class Blocks(StrEnum):
    """What cannot be granted before `until`."""

    LEAD = "lead"
    PERSON = "person"
    FLOW = "flow"
    CHANNEL = "channel"
    NUMBER = "number"
    ACCOUNT = "account"


class GateRefusal(Value, frozen=True):
    """A gate's refusal. Without `until`: until another event. `finish` ends the lead, `due_at` moves it."""

    reason: RefusalReason
    blocks: Blocks = Blocks.LEAD
    until: datetime | None = None
    subject: str | None = None
    owner: UUID | None = None
    finish: Finish | None = None
    due_at: datetime | None = None
    closes_at: datetime | None = None


class Refusal(Value, frozen=True):
    """`moved` is the lead's new entry in Postgres, with its new version; `finish` is how it ended. Without both, the
    lead has not changed."""

    grant: Grant
    reason: RefusalReason
    blocks: Blocks
    until: datetime | None
    subject: str | None
    # The attempt that blocks this one.
    owner: UUID | None
    moved: Entry | None = None
    finish: Finish | None = None

    @classmethod
    def of(cls, grant: Grant, gate_refusal: GateRefusal, moved: Entry | None = None) -> "Refusal":
        return cls(
            grant,
            gate_refusal.reason,
            gate_refusal.blocks,
            gate_refusal.until,
            gate_refusal.subject,
            gate_refusal.owner,
            moved,
            gate_refusal.finish,
        )

    @property
    def is_wait(self) -> bool:
        """Whether the lead has to wait for something. If not, the platform failed, and the lateness keeps counting."""
        return self.reason not in _OUR_FAILING and self.subject != SLOT_TAKEN

    @property
    def is_gone(self) -> bool:
        """Whether no dialer may call this version of the lead any more."""
        is_other = self.reason is RefusalReason.LEAD and self.until is None
        return is_other or self.moved is not None or self.finish is not None

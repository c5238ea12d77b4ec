"""Why a grant came to nothing. The reason says what it blocks, so that whoever matches does not ask again at once."""

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from trunkline.model import Entry, Finish, Grant
from trunkline.value import Value


class RefusalReason(StrEnum):
    # The grant and the world disagree.
    LEAD = "lead"
    NOT_DUE = "not_due"
    STALE_GRANT = "stale_grant"
    CHANNEL = "channel"
    PERSON = "person"
    # The gates.
    PAUSED = "paused"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    BLACKLISTED = "blacklisted"
    DESTINATION = "destination"
    WINDOW = "window"
    PRECHECK = "precheck"
    LIMIT = "limit"
    SPEND = "spend"
    AGENTS = "agents"
    PACE = "pace"
    # Postgres was busy, or we have a bug.
    CONTENDED = "contended"
    ERROR = "error"


class Blocks(StrEnum):
    """What cannot be granted before `until`."""

    LEAD = "lead"
    PERSON = "person"
    FLOW = "flow"
    CHANNEL = "channel"
    NUMBER = "number"
    ACCOUNT = "account"


class Answer(Value, frozen=True):
    """A gate's no. Without a time: until something else happens. `finish` ends the lead, `due_at` moves it."""

    reason: RefusalReason
    blocks: Blocks = Blocks.LEAD
    until: datetime | None = None
    subject: str | None = None
    owner: UUID | None = None
    finish: Finish | None = None
    due_at: datetime | None = None
    closes_at: datetime | None = None


class Refusal(Value, frozen=True):
    """`moved` is the lead's new place in Postgres, with its new version; `finish` is how it ended. Without both, it is
    where it was."""

    grant: Grant
    reason: RefusalReason
    blocks: Blocks
    until: datetime | None
    subject: str | None
    # The attempt that stands in the way.
    owner: UUID | None
    moved: Entry | None = None
    finish: Finish | None = None

    @classmethod
    def of(cls, grant: Grant, answer: Answer, moved: Entry | None = None) -> "Refusal":
        return cls(
            grant,
            answer.reason,
            answer.blocks,
            answer.until,
            answer.subject,
            answer.owner,
            moved,
            answer.finish,
        )

    @property
    def is_gone(self) -> bool:
        """Whether the lead, in this version, is nobody's to call any more."""
        is_other = self.reason is RefusalReason.LEAD and self.until is None
        return is_other or self.moved is not None or self.finish is not None

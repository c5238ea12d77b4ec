"""What the platform recorded, as the judge reads it."""

import msgspec


class Attempt(msgspec.Struct, frozen=True):
    """What the platform recorded of one dial, and of its lead."""

    attempt: str
    lead: str
    state: str
    was_answered: bool
    end_reason: str | None
    # Whether an agent took part, as the platform sees it.
    agent: str | None = None
    # JSON of its row and its allocation's, for who looks for the reason of a wrong record.
    detail: str = ""


class Lead(msgspec.Struct, frozen=True):
    lead: str
    merchant: str
    phone: str
    status: str
    outcome: str | None
    reason: str | None

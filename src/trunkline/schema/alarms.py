"""Alarms, and the lines of the audit log."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from trunkline.schema.fields import ITS_ID, OF_MERCHANT, OF_RESELLER, Indexed, about

_SUBJECT = about("What the alarm is about: a carrier, a role, a type of job. Empty if there is only one.")
_ACTOR = about("`key:<id>` of the API key, or the component of the platform that made the change.")


@dataclass(frozen=True, slots=True)
class Alarm(Indexed):
    """Something that needs a person."""

    id: UUID = field(metadata=ITS_ID)
    name: str = field(metadata=about("Its kind, for example `dispatch_halted`."))
    subject: str = field(metadata=_SUBJECT)
    severity: Literal["page", "urgent", "warning"] = field(metadata=about("How urgent it is."))
    meaning: str = field(metadata=about("What it means."))
    action: str = field(metadata=about("What an operator should do."))
    detail: dict[str, Any] = field(metadata=about("What was measured or reported."))
    raised_at: datetime = field(metadata=about("When it was raised."))
    seen_at: datetime = field(metadata=about("When it was last raised or measured."))
    cleared_at: datetime | None = field(metadata=about("When it was cleared; null: it is open."))
    cleared_by: str | None = field(metadata=about("Who cleared it."))
    reseller_id: str | None = field(metadata=OF_RESELLER)
    merchant_id: str | None = field(metadata=OF_MERCHANT)


@dataclass(frozen=True, slots=True)
class AuditLine(Indexed):
    """A change that a person or a key has made."""

    id: int = field(metadata=ITS_ID)
    at: datetime = field(metadata=about("When it was made."))
    actor: str = field(metadata=_ACTOR)
    action: str = field(metadata=about("What was done, for example `pool.created`."))
    subject: str = field(metadata=about("What was changed."))
    reason: str | None = field(metadata=about("Why, if a reason was given."))
    details: dict[str, Any] = field(metadata=about("What was set."))
    reseller_id: str | None = field(metadata=OF_RESELLER)
    merchant_id: str | None = field(metadata=OF_MERCHANT)

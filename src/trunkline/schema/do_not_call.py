"""Do-not-call lists."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from uuid import UUID

from trunkline.schema.fields import (
    CREATED_AT,
    FOR_MERCHANT,
    FOR_RESELLER,
    ITS_ID,
    OF_MERCHANT,
    OF_RESELLER,
    Moment,
    Name,
    ObjectId,
    PhoneText,
    about,
    body,
)

BULK_MAX = 10_000
_REASON = about("Why the person is not called.")
_EXPIRES_AT = about("Left out: it does not expire.")


@dataclass(frozen=True, slots=True)
class DoNotCallEntry:
    """A person who is not to be called: by a merchant, by a reseller's merchants, or by anybody."""

    id: UUID = field(metadata=ITS_ID)
    phone: str = field(repr=False, metadata=about("As E.164."))
    reseller_id: str | None = field(metadata=OF_RESELLER)
    merchant_id: str | None = field(metadata=OF_MERCHANT)
    reason: str = field(metadata=_REASON)
    expires_at: datetime | None = field(
        metadata=about("From then on it does not count. null: it does not expire.")
    )
    created_at: datetime = field(metadata=CREATED_AT)
    created_by: str = field(metadata=about("Who put it on the list."))


@dataclass(frozen=True, slots=True)
class NewDoNotCallEntry:
    """Puts a phone on the list."""

    __pydantic_config__ = body({"phone": "+14155550123", "reason": "asked us to stop"})

    phone: PhoneText = field(repr=False, metadata=about("With its country code."))
    _: KW_ONLY
    reseller_id: ObjectId | None = field(default=None, metadata=FOR_RESELLER)
    merchant_id: ObjectId | None = field(default=None, metadata=FOR_MERCHANT)
    reason: Name = field(default="asked", metadata=_REASON)
    expires_at: Moment | None = field(default=None, metadata=_EXPIRES_AT)


@dataclass(frozen=True, slots=True)
class NewDoNotCallEntries:
    """Puts many phones on the list."""

    __pydantic_config__ = body({"phones": ["+14155550123", "+14155550124"], "reason": "registry"})

    phones: list[str] = field(
        repr=False, metadata=about("Each with its country code.", min_length=1, max_length=BULK_MAX)
    )
    _: KW_ONLY
    reseller_id: ObjectId | None = field(default=None, metadata=FOR_RESELLER)
    merchant_id: ObjectId | None = field(default=None, metadata=FOR_MERCHANT)
    reason: Name = field(default="asked", metadata=_REASON)
    expires_at: Moment | None = field(default=None, metadata=_EXPIRES_AT)


@dataclass(frozen=True, slots=True)
class RefusedPhone:
    """A row of many that is no phone number."""

    index: int = field(metadata=about("Its index in `phones`, from 0."))
    error: str = field(metadata=about("What is wrong with it."))


@dataclass(frozen=True, slots=True)
class DoNotCallEntriesAdded:
    """How many phones are on the list now."""

    added: int = field(metadata=about("Those that are new on the list."))
    known: int = field(metadata=about("Entries that existed before; reason and end were updated."))
    refused: list[RefusedPhone] = field(
        metadata=about("Rows that are not phone numbers. The others are on the list.")
    )

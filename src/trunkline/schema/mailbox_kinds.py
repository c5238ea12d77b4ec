"""Kinds of mailboxes with appends over HTTP."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Annotated

from trunkline.schema.fields import (
    CREATED_AT,
    FOR_MERCHANT,
    FOR_RESELLER,
    OF_MERCHANT,
    OF_RESELLER,
    ObjectId,
    TextRule,
    about,
    body,
)

KindName = Annotated[str, TextRule(r"^[a-z][a-z0-9_-]{0,62}$")]


@dataclass(frozen=True, slots=True)
class MailboxKind:
    """A kind of mailbox that a tenant may append to."""

    kind: str = field(metadata=about("The kind, as the handler declares it."))
    reseller_id: str | None = field(metadata=OF_RESELLER)
    merchant_id: str | None = field(metadata=OF_MERCHANT)
    created_at: datetime = field(metadata=CREATED_AT)


@dataclass(frozen=True, slots=True)
class MailboxKindWithSecret(MailboxKind):
    """A kind of mailbox, with its signing secret."""

    secret: str = field(
        repr=False,
        metadata=about("Signs appends of senders without an API key. Only this response shows it."),
    )


@dataclass(frozen=True, slots=True)
class NewMailboxKind:
    """Declares a kind of mailbox."""

    __pydantic_config__ = body({"kind": "issue", "merchant_id": "acme-store"})

    kind: KindName = field(metadata=about("The kind, as the handler declares it."))
    _: KW_ONLY
    reseller_id: ObjectId | None = field(default=None, metadata=FOR_RESELLER)
    merchant_id: ObjectId | None = field(default=None, metadata=FOR_MERCHANT)

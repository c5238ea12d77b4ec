"""The inbound policy of a number: which callers are admitted, and what the others get."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from trunkline.schema.fields import PHONE_MAX, ObjectId, TextRule, about, body

Phone = Annotated[str, TextRule(None, 1, PHONE_MAX)]
Message = Annotated[str, TextRule(r"^[^\x00-\x1f\x7f]+$", 1, 500)]
WHITELIST_MAX = 1000

_ADMITS = about("Which callers are admitted.")
_WHITELIST = "Callers that are admitted, as E.164."
_MERCHANT = about("The merchant of the calls. Required on a number that several merchants share.")
_OTHERWISE = about("What the other callers get: a busy signal, a message, or another number.")
_MESSAGE = about("Spoken before the call ends.")
_REDIRECT = about("The number to which they are forwarded.")


@dataclass(frozen=True, slots=True)
class InboundPolicy:
    """What happens to the calls that come in on a number."""

    number_id: UUID = field(metadata=about("The number."))
    admits: str = field(metadata=_ADMITS)
    whitelist: list[str] = field(repr=False, metadata=about(_WHITELIST))
    merchant_id: str | None = field(metadata=_MERCHANT)
    otherwise: str = field(metadata=_OTHERWISE)
    message: str | None = field(metadata=_MESSAGE)
    redirect_to: str | None = field(repr=False, metadata=_REDIRECT)
    updated_at: datetime | None = field(metadata=about("null: there is no policy."))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInboundPolicy:
    """Sets a number's inbound policy."""

    __pydantic_config__ = body(
        {"admits": "everybody", "otherwise": "message", "message": "All lines are busy."},
        {"admits": "whitelist", "whitelist": ["+14155550123"], "otherwise": "reject"},
    )

    admits: Literal["everybody", "whitelist", "nobody"] = field(default="everybody", metadata=_ADMITS)
    whitelist: list[Phone] = field(
        default_factory=list, repr=False, metadata=about(_WHITELIST, max_length=WHITELIST_MAX)
    )
    merchant_id: ObjectId | None = field(default=None, metadata=_MERCHANT)
    otherwise: Literal["reject", "message", "redirect"] = field(default="reject", metadata=_OTHERWISE)
    message: Message | None = field(default=None, metadata=_MESSAGE)
    redirect_to: Phone | None = field(default=None, repr=False, metadata=_REDIRECT)

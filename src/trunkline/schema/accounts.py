"""Accounts at carriers."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from trunkline.schema.fields import CREATED_AT, ITS_ID, UPDATED_AT, Indexed, TextRule, about, body

CarrierName = Literal["twilio", "plivo", "exotel", "vapi"]
AccountName = Annotated[str, TextRule(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
CredentialName = Annotated[str, TextRule(r"^[a-z_]{1,40}$")]
Credential = Annotated[str, TextRule(r"^[\x20-\x7e]*$", max_length=500)]
BaseUrl = Annotated[str, TextRule(r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[\x21-\x7e]*)?$")]
AccountStatus = Literal["active", "disabled"]

_CARRIER = about("The carrier that it is with.")
_NAME = about("The name by which numbers refer to the account.")
_CREDENTIALS = "By the carrier's own names; docs/reference/carriers.md lists them. Written, never read again."
_BASE_URL = about("The base URL of the carrier's API, if it is not the usual one.")
_PACE_TEXT = "The maximum of calls that the account starts per second. Left out: only the carrier limits it."
_PACE = about(_PACE_TEXT, gt=0, le=10_000)
_STATUS = about("A disabled account is not used: its numbers do not dial, its webhooks are refused.")


@dataclass(frozen=True, slots=True)
class Account:
    """An account at a carrier, without its secrets."""

    id: UUID = field(metadata=ITS_ID)
    carrier: str = field(metadata=_CARRIER)
    name: str = field(metadata=_NAME)
    credentials: dict[str, str] = field(metadata=about("The credentials that are not secret."))
    secrets: list[str] = field(metadata=about("The names of the secret credentials."))
    usable: bool = field(
        metadata=about(
            "false: the credentials were encrypted with a key that is no longer set. Enter them again."
        )
    )
    base_url: str | None = field(metadata=_BASE_URL)
    starts_per_s: float | None = field(metadata=about(_PACE_TEXT))
    status: str = field(metadata=_STATUS)
    version: int = field(metadata=about("Rises with every change."))
    created_at: datetime = field(metadata=CREATED_AT)
    updated_at: datetime = field(metadata=UPDATED_AT)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAccount:
    """Adds an account."""

    __pydantic_config__ = body(
        {
            "carrier": "twilio",
            "name": "acme",
            "credentials": {
                "account_sid": "AC00000000000000000000000000000001",
                "auth_token": "the-account-s-token",
            },
            "starts_per_s": 1,
        }
    )

    carrier: CarrierName = field(metadata=_CARRIER)
    name: AccountName = field(default="default", metadata=_NAME)
    credentials: dict[CredentialName, Credential] = field(
        repr=False, metadata=about(_CREDENTIALS, max_length=20)
    )
    base_url: BaseUrl | None = field(default=None, metadata=_BASE_URL)
    starts_per_s: float | None = field(default=None, metadata=_PACE)
    status: AccountStatus = field(default="active", metadata=_STATUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountChange:
    """Changes an account."""

    __pydantic_config__ = body({"credentials": {"auth_token": "the-account-s-token"}})

    credentials: dict[CredentialName, Credential] | None = field(
        default=None,
        repr=False,
        metadata=about(
            f"The credentials to change; an empty value removes one. {_CREDENTIALS}", max_length=20
        ),
    )
    base_url: BaseUrl | None = field(default=None, metadata=about("null: the carrier's usual base URL."))
    starts_per_s: float | None = field(default=None, metadata=_PACE)
    status: AccountStatus | None = field(default=None, metadata=_STATUS)


@dataclass(frozen=True, slots=True)
class AccountUrls:
    """What to enter at the carrier. They are signed: share them with the carrier only."""

    inbound: str = field(metadata=about("The carrier requests the document of an inbound call here."))
    status: str = field(metadata=about("The carrier reports the end of an inbound call here."))
    answer: str = field(
        metadata=about("Exotel: the URL for the Voicebot applet of the flow of outbound calls.")
    )


@dataclass(frozen=True, slots=True)
class WhichAccount:
    """Names an account."""

    __pydantic_config__ = body({"carrier": "twilio", "account": "acme"})

    carrier: CarrierName = field(metadata=_CARRIER)
    account: AccountName = field(
        default="default", metadata=about("The account's name. `default` is also that of the environment.")
    )


@dataclass(frozen=True, slots=True)
class CarrierNumbers(Indexed):
    """The numbers of an account, as its carrier lists them."""

    carrier: str = field(metadata=_CARRIER)
    account: str = field(metadata=about("The account's name."))
    numbers: list[str] = field(metadata=about("Numbers that can make calls, as E.164."))

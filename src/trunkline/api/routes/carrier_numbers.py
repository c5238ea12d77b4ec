"""The numbers of an account in its carrier's list, for an import. Also checks the credentials."""

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from trunkline.api.auth import API_ROOT, AdminKey, require_platform
from trunkline.api.deps import Deps
from trunkline.api.errors import ApiError, conflict
from trunkline.api.models import WRITE_ERRORS, Body, ErrorOut, Responses
from trunkline.api.routes.accounts import AccountName, CarrierName
from trunkline.telephony.carrier import Unavailable
from trunkline.telephony.carrier_registry import CarrierConfigError

router = APIRouter(prefix=f"{API_ROOT}/accounts", tags=["accounts"])

_REFUSALS: Responses = {
    409: {"model": ErrorOut, "description": "There is no such account, or it cannot be used."},
    502: {"model": ErrorOut, "description": "The carrier refused, or did not answer."},
}


class WhichAccount(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"carrier": "twilio", "account": "acme"}]})

    carrier: CarrierName
    account: AccountName = Field(
        "default", description="The account's name. `default` is also that of the environment."
    )


class CarrierNumbers(BaseModel):
    carrier: str
    account: str
    numbers: list[str] = Field(description="Numbers that can make calls, as E.164.")


@router.post(
    "/numbers",
    response_model=CarrierNumbers,
    responses=WRITE_ERRORS | _REFUSALS,
    summary="List an account's numbers at its carrier",
)
async def ask_for_numbers(body: WhichAccount, who: AdminKey, api: Deps) -> CarrierNumbers:
    """Queries the carrier itself, so it also checks the credentials. For a key of the platform."""
    require_platform(who, "ask carriers")
    if api.deps.accounts is None:
        raise ApiError(
            503,
            "accounts_unavailable",
            "This process has no accounts. Send the request to one with the role api.",
        )
    await api.deps.accounts.refresh()
    try:
        account = api.deps.accounts.directory.get(body.carrier, body.account)
    except CarrierConfigError as error:
        raise conflict("account_not_usable", f"{error}.") from None
    numbers = await account.own_numbers()
    if isinstance(numbers, Unavailable):
        raise _unavailable(body.carrier, numbers)
    return CarrierNumbers(carrier=body.carrier, account=body.account, numbers=numbers)


def _unavailable(carrier: str, unavailable: Unavailable) -> ApiError:
    if unavailable.is_unauthorized:
        message = f"{carrier} rejects these credentials ({unavailable.reason}). Enter them again."
        return ApiError(502, "carrier_refused", message)
    return ApiError(502, "carrier_unavailable", f"{carrier} did not answer: {unavailable.reason}.")

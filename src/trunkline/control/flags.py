"""Feature flags: their definitions, and for whom one is on.

    if flags.is_on(EVENT_DISPATCH, reseller_id=lead.reseller_id, merchant_id=lead.merchant_id): ...

Evaluation goes through the OpenFeature API, so that a hosted flag service can replace the platform's own:
`StoreProvider` is the provider on Postgres, and `FEATURE_FLAG_PROVIDER` names another one. A provider must answer from
memory, as the platform's does. One that sends a request per evaluation would block the event loop, and needs a cache of
its own.
"""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import TypeVar
from uuid import uuid4

from openfeature import api
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import FlagResolutionDetails, FlagValueType, Reason
from openfeature.provider import AbstractProvider, FeatureProvider, Metadata
from openfeature.provider.no_op_provider import NoOpProvider

from trunkline.errors import TrunklineError
from trunkline.schema.flags import Flag

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FlagDefinition:
    """A flag that the code evaluates. `default` holds until an operator sets it."""

    name: str
    default: bool
    meaning: str


EVENT_DISPATCH = FlagDefinition(
    "event_dispatch",
    True,
    "Leads are dispatched by this platform. Off for a reseller whose leads another system still calls.",
)
DEFINITIONS: Mapping[str, FlagDefinition] = {definition.name: definition for definition in (EVENT_DISPATCH,)}

# The names of the same switches in the system before this one.
_OLD_NAMES = {"bb_dispatch_enabled": EVENT_DISPATCH.name}
_OLD_RESELLER_PREFIX = "bb_dispatch_use_event_path_for_reseller_"


class Because(StrEnum):
    DISABLED = "disabled"
    MERCHANT = "merchant"
    RESELLER = "reseller"
    PERCENTAGE = "percentage"


def translate(name: str) -> tuple[str, str | None]:
    """The present name of an old flag, and the reseller that the old name contained."""
    if name.startswith(_OLD_RESELLER_PREFIX):
        return EVENT_DISPATCH.name, name.removeprefix(_OLD_RESELLER_PREFIX)
    return _OLD_NAMES.get(name, name), None


def decide(
    flag: Flag, *, reseller_id: str | None, merchant_id: str | None, key: str | None
) -> tuple[bool, Because]:
    """Disabled is off for all. Then the narrowest setting counts: merchant, reseller, percentage.

    `key` selects the bucket of the percentage: the same key gets the same answer every time.
    """
    if not flag.enabled:
        return False, Because.DISABLED
    if merchant_id is not None and merchant_id in flag.merchants:
        return flag.merchants[merchant_id], Because.MERCHANT
    if reseller_id is not None and reseller_id in flag.resellers:
        return flag.resellers[reseller_id], Because.RESELLER
    return bucket(flag.name, key or "") < flag.percentage, Because.PERCENTAGE


def bucket(flag: str, key: str) -> int:
    """0 to 99, stable. The flag's name is part of the hash, or every trial would select the same merchants."""
    digest = hashlib.md5(f"{flag}/{key}".encode(), usedforsecurity=False).hexdigest()
    return int(digest, 16) % 100


class FlagBoard:
    """This process's copy of the flags, at most half a second behind Postgres."""

    def __init__(self) -> None:
        self._flags: Mapping[str, Flag] = {}

    def read(self, flags: Iterable[Flag]) -> None:
        self._flags = {flag.name: flag for flag in flags}

    def get(self, name: str) -> Flag | None:
        return self._flags.get(name)


_REASONS = {
    Because.DISABLED: Reason.DISABLED,
    Because.MERCHANT: Reason.TARGETING_MATCH,
    Because.RESELLER: Reason.TARGETING_MATCH,
    Because.PERCENTAGE: Reason.SPLIT,
}


class FlagProviderError(TrunklineError):
    """FEATURE_FLAG_PROVIDER cannot be used."""


class StoreProvider(AbstractProvider):
    """Evaluates the flags of Postgres. They are booleans only."""

    def __init__(self, board: FlagBoard):
        super().__init__()
        self._board = board

    def get_metadata(self) -> Metadata:
        return Metadata(name="trunkline")

    def resolve_boolean_details(
        self, flag_key: str, default_value: bool, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[bool]:
        name, reseller_in_name = translate(flag_key)
        flag = self._board.get(name)
        if flag is None:
            return FlagResolutionDetails(default_value, reason=Reason.DEFAULT)
        context = evaluation_context or EvaluationContext()
        reseller_id = reseller_in_name or _text(context, "reseller_id")
        merchant_id = _text(context, "merchant_id")
        key = context.targeting_key or merchant_id or reseller_id
        value, because = decide(flag, reseller_id=reseller_id, merchant_id=merchant_id, key=key)
        return FlagResolutionDetails(
            value, reason=_REASONS[because], flag_metadata={"because": because.value}
        )

    def resolve_string_details(
        self, flag_key: str, default_value: str, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[str]:
        return _only_booleans(default_value)

    def resolve_integer_details(
        self, flag_key: str, default_value: int, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[int]:
        return _only_booleans(default_value)

    def resolve_float_details(
        self, flag_key: str, default_value: float, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[float]:
        return _only_booleans(default_value)

    def resolve_object_details(
        self,
        flag_key: str,
        default_value: Sequence[FlagValueType] | Mapping[str, FlagValueType],
        evaluation_context: EvaluationContext | None = None,
    ) -> FlagResolutionDetails[Sequence[FlagValueType] | Mapping[str, FlagValueType]]:
        return _only_booleans(default_value)


class Flags:
    """Evaluates flags by the chosen provider. OpenFeature registers providers by domain; each platform has its own."""

    def __init__(self, board: FlagBoard, provider_path: str | None = None):
        self._board = None if provider_path else board
        self._provider = load_provider(provider_path) if provider_path else StoreProvider(board)
        self._domain = f"trunkline-{uuid4().hex}"
        self._client = api.get_client(self._domain)

    async def open(self) -> None:
        """The provider of a hosted service may connect here, so this runs in a thread."""
        try:
            await asyncio.to_thread(api.set_provider_and_wait, self._provider, self._domain)
        except Exception as error:
            raise FlagProviderError(f"The feature flag provider did not start: {error}") from error

    async def close(self) -> None:
        await asyncio.to_thread(api.set_provider_and_wait, NoOpProvider(), self._domain)

    def is_on(
        self, flag: FlagDefinition, *, reseller_id: str | None = None, merchant_id: str | None = None
    ) -> bool:
        """If the evaluation fails, the flag's default."""
        named = {"reseller_id": reseller_id, "merchant_id": merchant_id}
        context = EvaluationContext(
            merchant_id or reseller_id, {name: value for name, value in named.items() if value is not None}
        )
        return self._client.get_boolean_value(flag.name, flag.default, context)

    @property
    def is_hosted(self) -> bool:
        """Whether another provider evaluates flags, and those in Postgres are ignored."""
        return self._board is None

    def is_unset(self, flag: FlagDefinition) -> bool:
        """Whether the flag has its default for all. Always False with another provider, which does not report it."""
        return self._board is not None and self._board.get(flag.name) is None


def load_provider(path: str) -> FeatureProvider:
    """`package.module:factory`, a class or a function of the operator, called without arguments."""
    module_name, _, name = path.partition(":")
    try:
        provider: FeatureProvider = getattr(import_module(module_name), name)()
    except Exception as error:
        raise FlagProviderError(
            f"FEATURE_FLAG_PROVIDER={path} cannot be used: {error}. It is written package.module:factory."
        ) from error
    return provider


def _text(context: EvaluationContext, name: str) -> str | None:
    value = context.attributes.get(name)
    return value if isinstance(value, str) else None


def _only_booleans(default: T) -> FlagResolutionDetails[T]:
    return FlagResolutionDetails(
        default, error_code=ErrorCode.TYPE_MISMATCH, error_message="Flags here are on or off."
    )

"""Feature flags: their definitions, and for whom one is on.

    if flags.is_on(EVENT_DISPATCH, reseller_id=lead.reseller_id, merchant_id=lead.merchant_id): ...

Evaluation goes through the OpenFeature API, so that a hosted flag service can replace the platform's own: `provider.py`
is the provider on Postgres, and `FEATURE_FLAG_PROVIDER` names another one.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from trunkline.store.flags import Flag


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

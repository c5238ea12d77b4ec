"""`TIER_CONFIG`: the tiers of pods. JSON as `{"gold": {"type": "exclusive", "target": 1}, …}`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STANDARD = "standard"
# The tiers that every call falls back to.
COMMON = (STANDARD, "overflow", "basic")
# The calls per pod of a shared tier, by default.
MAX_CONCURRENT_DEFAULT = 5
MAX_CONCURRENT_MAX = 1000
TARGET_MAX = 1_000_000
# `merchant:<id>` is the pool of one merchant.
_NAME = re.compile(r"merchant:[!-9;-~]{1,64}|[a-z][a-z0-9_-]{0,62}")
# A merchant with this tier has a pool of its own, so no pool can have this name.
_RESERVED = frozenset({"dedicated"})


@dataclass(frozen=True, slots=True)
class Tier:
    """`target`: how many pods it should have. A pod of a shared tier takes up to `max_concurrent` calls, another one
    call. `callers` is its inbound reserve in slots; None: 10 % of them, rounded down."""

    is_shared: bool
    target: int
    max_concurrent: int = 1
    callers: int | None = None

    @property
    def text(self) -> str:
        """The format of the router's scripts."""
        callers = "" if self.callers is None else f"|{self.callers}"
        return f"{'s' if self.is_shared else 'e'}|{self.target}|{self.max_concurrent}{callers}"


Tiers = Mapping[str, Tier]

# For an empty `TIER_CONFIG`: every agent takes calls of all merchants.
DEFAULT: Tiers = {STANDARD: Tier(False, 1)}


def parse_tiers(text: str) -> Tiers:
    """The tiers; a ValueError describes a problem in one line."""
    try:
        config = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos}") from error
    if not isinstance(config, dict):
        raise ValueError("not a JSON object")
    if not config:
        return DEFAULT
    tiers = {name: _tier(name, fields) for name, fields in config.items()}
    # Every pod needs a tier, and every call falls back to this one.
    return {STANDARD: Tier(False, 0), **tiers}


def own_tier(merchant_id: str, config: str) -> str | None:
    """The tier that a merchant's config names, `{"tier": …, "pool": …}` as text. None: it names none."""
    try:
        fields = json.loads(config) if config else None
    except json.JSONDecodeError:
        return None
    if not isinstance(fields, dict):
        return None
    tier = fields.get("tier")
    if tier == "dedicated":
        pool = fields.get("pool")
        return f"merchant:{pool if isinstance(pool, str) and pool else merchant_id}"
    return tier if isinstance(tier, str) and tier else None


def chain(merchant_id: str, config: str) -> tuple[str, ...]:
    """The tiers whose pods may take a merchant's calls, in order: its own, then the common ones."""
    return tuple(dict.fromkeys((own_tier(merchant_id, config) or STANDARD, *COMMON)))


def assignment_order(tiers: Tiers) -> tuple[str, ...]:
    """The order in which tiers get new pods up to their target: merchants' pools, gold, shared ones, others, standard,
    overflow. Further pods go to standard."""
    return tuple(sorted(tiers, key=lambda name: (_place(name, tiers[name]), name)))


def _place(name: str, tier: Tier) -> int:
    if name.startswith("merchant:"):
        return 0
    fixed = {"gold": 1, STANDARD: 4, "overflow": 5}
    return fixed.get(name, 2 if tier.is_shared else 3)


def _tier(name: str, fields: Any) -> Tier:
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise ValueError(f"{name!r} is no name of a tier")
    if not isinstance(fields, dict):
        raise ValueError(f"{name}: not a JSON object")
    unknown = sorted(fields.keys() - {"type", "target", "max_concurrent", "callers"})
    if unknown:
        raise ValueError(f"{name}: unknown field {unknown[0]!r}")
    kind = fields.get("type", "exclusive")
    if kind not in ("exclusive", "shared"):
        raise ValueError(f"{name}: type must be 'exclusive' or 'shared'")
    target = _whole(name, fields, "target", 0, TARGET_MAX, default=0)
    callers = _whole(name, fields, "callers", 0, TARGET_MAX, default=0) if "callers" in fields else None
    if kind == "exclusive":
        if fields.get("max_concurrent", 1) != 1:
            raise ValueError(f"{name}: max_concurrent is for shared tiers")
        return Tier(False, target, callers=callers)
    most = _whole(name, fields, "max_concurrent", 1, MAX_CONCURRENT_MAX, default=MAX_CONCURRENT_DEFAULT)
    return Tier(True, target, most, callers)


def _whole(name: str, fields: Mapping[str, Any], field: str, least: int, most: int, *, default: int) -> int:
    value = fields.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name}: {field} must be a whole number from {least} to {most}")
    return value

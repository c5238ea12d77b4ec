"""`TIER_CONFIG`: which tiers of pods there are. JSON as `{"gold": {"type": "exclusive", "target": 1}, …}`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STANDARD = "standard"
# The tiers that every call falls back to.
COMMON = (STANDARD, "overflow", "basic")
# A shared tier that does not say how many calls a pod may have.
MAX_CONCURRENT_DEFAULT = 5
MAX_CONCURRENT_MAX = 1000
TARGET_MAX = 1_000_000
# `merchant:<id>` is the pool of one merchant.
_NAME = re.compile(r"merchant:[!-9;-~]{1,64}|[a-z][a-z0-9_-]{0,62}")
# A merchant with this tier has a pool of its own, so no pool can be named so.
_RESERVED = frozenset({"dedicated"})


@dataclass(frozen=True, slots=True)
class Tier:
    """`target` pods shall be in it. A pod of a shared tier has up to `max_concurrent` calls, of another one. On
    `callers` slots no dial is kept; None: on a tenth of them, rounded down."""

    is_shared: bool
    target: int
    max_concurrent: int = 1
    callers: int | None = None

    @property
    def text(self) -> str:
        """As the scripts of the router read it."""
        callers = "" if self.callers is None else f"|{self.callers}"
        return f"{'s' if self.is_shared else 'e'}|{self.target}|{self.max_concurrent}{callers}"


Tiers = Mapping[str, Tier]

# What an empty `TIER_CONFIG` means: every agent, from the first one on, is for everybody.
DEFAULT: Tiers = {STANDARD: Tier(False, 1)}


def parse_tiers(text: str) -> Tiers:
    """The tiers; a ValueError says in one line what is wrong with them."""
    try:
        config = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos}") from error
    if not isinstance(config, dict):
        raise ValueError("not a JSON object")
    if not config:
        return DEFAULT
    tiers = {name: _tier(name, fields) for name, fields in config.items()}
    # Every pod has to be somewhere, and every call falls back to it.
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
    """In which order tiers get new pods until they have their target: merchants' pools, gold, shared ones, others,
    standard, overflow. What is left goes to standard."""
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

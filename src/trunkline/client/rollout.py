"""Decides which calls use the router during its rollout. The gates are evaluated in their documented order. Pure."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trunkline.client.router_settings import SettingsReader


@dataclass(frozen=True, slots=True)
class RolloutFlags:
    """May change while the process runs. The list narrows the percentage: with 100, only merchants of the list; with 0,
    none at all."""

    percentage: int = 0
    merchants: frozenset[str] = frozenset()
    twilio_direct: bool = False
    plivo_direct: bool = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "RolloutFlags":
        reader = SettingsReader(environ)
        names = reader.text("SMART_ROUTER_MERCHANTS", "").split(",")
        flags = cls(
            reader.number("SMART_ROUTER_PERCENTAGE", 0, 0, 100),
            frozenset(name.strip() for name in names if name.strip()),
            reader.switch("SMART_ROUTER_ENABLE_TWILIO_DIRECT", False),
            reader.switch("SMART_ROUTER_ENABLE_PLIVO_DIRECT", False),
        )
        reader.check()
        return flags


# Called for every call, so that a flag service can decide.
ReadFlags = Callable[[], RolloutFlags]


@dataclass(frozen=True, slots=True)
class RolloutDecision:
    """`reason` is the gate that refused; '' if none did."""

    use_router: bool
    reason: str = ""


def bucket(merchant_id: str) -> int:
    """0 to 99, always the same for one merchant."""
    digest = hashlib.md5(merchant_id.encode(), usedforsecurity=False).hexdigest()
    return int(digest, 16) % 100


def decide(
    merchant_id: str, flags: RolloutFlags, *, is_enabled: bool, is_circuit_open: bool
) -> RolloutDecision:
    if not is_enabled:
        return RolloutDecision(False, "isolation_disabled")
    if is_circuit_open:
        return RolloutDecision(False, "circuit_open")
    if flags.percentage == 0:
        return RolloutDecision(False, "percentage_zero")
    if flags.percentage < 100 and bucket(merchant_id) >= flags.percentage:
        return RolloutDecision(False, "outside_percentage")
    if flags.merchants and merchant_id not in flags.merchants:
        return RolloutDecision(False, "not_listed")
    return RolloutDecision(True)

"""Faults between the platform and the carrier, by seed. Probabilities are of calls, or of webhooks where noted.

Faults never touch the ledger: a dialled call is in it, whatever the reply was.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TypeVar

from trunkline.telephony.simulator.dice import between, roll


class ReplyFault(StrEnum):
    """How the reply to a create goes wrong. The name says whether the call was dialled."""

    SLOW = "slow_reply"
    ERROR_AFTER_DIAL = "error_after_dial"
    REPLY_LOST = "reply_lost"
    RESET_AFTER_DIAL = "reset_after_dial"
    GARBAGE_AFTER_DIAL = "garbage_after_dial"
    WEBHOOK_FIRST = "webhook_first"
    THROTTLED = "throttled"
    ERROR_UNDIALLED = "error_undialled"
    RESET_UNDIALLED = "reset_undialled"
    REDIRECT_UNDIALLED = "redirect_undialled"


UNDIALLED = frozenset(
    {
        ReplyFault.THROTTLED,
        ReplyFault.ERROR_UNDIALLED,
        ReplyFault.RESET_UNDIALLED,
        ReplyFault.REDIRECT_UNDIALLED,
    }
)


class WebhookFault(StrEnum):
    LOST = "webhook_lost"
    DOUBLED = "webhook_doubled"
    REORDERED = "webhook_reordered"
    LATE = "webhook_late"


# Without slots: the possible faults are computed once and cached.
@dataclass(frozen=True)
class Faults:
    # Of calls: at most one of these each.
    slow_reply: float = 0.0
    error_after_dial: float = 0.0
    reply_lost: float = 0.0
    reset_after_dial: float = 0.0
    garbage_after_dial: float = 0.0
    webhook_first: float = 0.0
    throttled: float = 0.0
    error_undialled: float = 0.0
    reset_undialled: float = 0.0
    redirect_undialled: float = 0.0
    # Of webhooks: at most one of these each.
    webhook_lost: float = 0.0
    webhook_doubled: float = 0.0
    webhook_reordered: float = 0.0
    webhook_late: float = 0.0
    # Of the call list.
    list_lag_s: float = 0.0
    list_down: bool = False
    # How much, in real seconds.
    slow_reply_s: tuple[float, float] = (0.5, 3.0)
    reply_lost_s: float = 30.0
    retry_after_s: int = 1
    webhook_late_s: tuple[float, float] = (0.5, 5.0)

    def __post_init__(self) -> None:
        for kinds in (ReplyFault, WebhookFault):
            chances = [getattr(self, kind.value) for kind in kinds]
            if min(chances) < 0 or sum(chances) > 1:
                raise ValueError(
                    f"probabilities from 0 to 1 in sum: {', '.join(kind.value for kind in kinds)}"
                )

    @cached_property
    def of_replies(self) -> "tuple[tuple[ReplyFault, float], ...]":
        return _possible(ReplyFault, self)

    @cached_property
    def of_webhooks(self) -> "tuple[tuple[WebhookFault, float], ...]":
        return _possible(WebhookFault, self)


F = TypeVar("F", ReplyFault, WebhookFault)


def reply_fault(faults: Faults, seed: int, to: str, nth: int) -> ReplyFault | None:
    odds = faults.of_replies
    return _pick(odds, roll(seed, "reply", to, nth)) if odds else None


def slow_reply_s(faults: Faults, seed: int, to: str, nth: int) -> float:
    return between(faults.slow_reply_s, roll(seed, "slow", to, nth))


def webhook_fault(faults: Faults, seed: int, to: str, nth: int, sequence: int) -> WebhookFault | None:
    odds = faults.of_webhooks
    return _pick(odds, roll(seed, "webhook", to, nth, sequence)) if odds else None


def webhook_late_s(faults: Faults, seed: int, to: str, nth: int, sequence: int) -> float:
    return between(faults.webhook_late_s, roll(seed, "late", to, nth, sequence))


def _possible(kinds: type[F], faults: Faults) -> tuple[tuple[F, float], ...]:
    odds = [(kind, getattr(faults, kind.value)) for kind in kinds]
    return tuple((kind, share) for kind, share in odds if share)


def _pick(odds: Iterable[tuple[F, float]], chance: float) -> F | None:
    for kind, share in odds:
        if chance < share:
            return kind
        chance -= share
    return None

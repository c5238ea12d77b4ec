"""One HTTP exchange with a carrier, and its meaning for a dial. The table is in `reply_rules`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Literal

from trunkline.telephony.carrier import Accepted, Blame, InDoubt, PlaceResult, Rejected, Throttled
from trunkline.value import Private, Value

# For a 429 without a time. One second is the pace of the slowest account.
RETRY_AFTER_DEFAULT_S = 1.0
RETRY_AFTER_MAX_S = 3600.0


class HttpReply(Value, frozen=True):
    """The carrier, or something in front of it, answered in full."""

    status: int
    headers: Private[Mapping[str, str]]
    body: Private[bytes]


class NotSent(Value, frozen=True):
    """Failed while no byte of the request had left."""

    reason: Literal["not_connected", "not_sent_in_time"]
    detail: str


class ReplyLost(Value, frozen=True):
    """Failed after bytes were written: the carrier may have read them."""

    reason: str


Exchange = HttpReply | NotSent | ReplyLost


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one carrier accepts and refuses. None means: this is not the carrier's own reply."""

    accepted: Callable[[HttpReply], Accepted | None]
    refused: Callable[[HttpReply], Rejected | Throttled | None]


def classify(exchange: Exchange, dialect: Dialect) -> PlaceResult:
    match exchange:
        case NotSent(reason, detail):
            blames: Blame = "network" if reason == "not_connected" else "nobody"
            return Rejected(reason, detail, retryable=True, blames=blames)
        case ReplyLost(reason):
            return InDoubt(reason)
        case HttpReply(status=429):
            return Throttled(retry_after_s(exchange, datetime.now(UTC)))
        case HttpReply(status=status) if 200 <= status < 300:
            return dialect.accepted(exchange) or InDoubt(f"status {status} without a call id")
        case HttpReply(status=status) if 400 <= status < 500:
            return dialect.refused(exchange) or InDoubt(f"status {status}, not in the carrier's words")
        case HttpReply(status=status):
            return InDoubt(f"status {status}")


def retry_after_s(reply: HttpReply, now: datetime) -> float:
    """Retry-After is seconds or an HTTP date."""
    text = reply.headers.get("retry-after", "").strip()
    try:
        seconds = float(text) if _is_number(text) else (parsedate_to_datetime(text) - now).total_seconds()
    except (ValueError, TypeError):
        return RETRY_AFTER_DEFAULT_S
    return min(max(seconds, 0.0), RETRY_AFTER_MAX_S)


def why(exchange: Exchange) -> str:
    """A description without URL and body."""
    return f"status {exchange.status}" if isinstance(exchange, HttpReply) else exchange.reason


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()

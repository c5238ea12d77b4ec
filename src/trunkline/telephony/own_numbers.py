"""The numbers that an account has at its carrier, page by page. Also the cheapest proof that its credentials fit."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from trunkline.telephony.carrier import NumbersResult, NumbersUnavailable
from trunkline.telephony.http_exchange import Exchange, HttpReply, why

PAGES_MAX = 50
# Twilio and Vapi say 401 to wrong credentials, Exotel and Plivo may say 403.
_UNAUTHORIZED = (401, 403)


@dataclass(frozen=True, slots=True)
class NumbersPage:
    """`following` is whatever the next page is asked with; None after the last one."""

    numbers: list[str]
    following: str | None = None


async def read_all(
    ask: Callable[[str | None], Awaitable[Exchange]], read: Callable[[bytes], NumbersPage | None]
) -> NumbersResult:
    """Every page, or none: half a list would look like numbers that were given back."""
    numbers: dict[str, None] = {}
    following: str | None = None
    for _ in range(PAGES_MAX):
        exchange = await ask(following)
        if isinstance(exchange, HttpReply) and exchange.status in _UNAUTHORIZED:
            return NumbersUnavailable(why(exchange), is_unauthorized=True)
        page = read(exchange.body) if isinstance(exchange, HttpReply) and exchange.status == 200 else None
        if page is None:
            return NumbersUnavailable(why(exchange))
        numbers |= dict.fromkeys(page.numbers)
        following = page.following
        if following is None:
            return list(numbers)
    return NumbersUnavailable(f"more than {PAGES_MAX} pages")


def rows_of(body: dict[str, Any], name: str) -> list[dict[str, Any]] | None:
    rows = body.get(name)
    is_table = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if is_table else None


def text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None

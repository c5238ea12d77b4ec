"""The numbers of an account at its carrier, page by page. Also the cheapest check of its credentials."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from trunkline.telephony.carrier import NumbersResult, NumbersUnavailable
from trunkline.telephony.http_exchange import Exchange, HttpReply, why

PAGES_MAX = 50
# Twilio and Vapi reply 401 to wrong credentials, Exotel and Plivo may reply 403.
_UNAUTHORIZED = (401, 403)


@dataclass(frozen=True, slots=True)
class NumbersPage:
    """`following` is the cursor of the next page; None after the last one."""

    numbers: list[str]
    following: str | None = None


async def read_all(
    ask: Callable[[str | None], Awaitable[Exchange]], read: Callable[[bytes], NumbersPage | None]
) -> NumbersResult:
    """Every page, or none: in an incomplete list numbers would look as if they had been released."""
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

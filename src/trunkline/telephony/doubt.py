"""Every answer a carrier can give to a dial, and what it proves. One table: a row is a promise, and has a test.

A row names a status and, where the carrier has them, a code or a word of its message; the first row that fits decides.
What no row names is in doubt, and so is every failure after the first byte was sent:

    failed before a byte was sent              rejected (not connected, not sent in time)
    time-out, reset, connection closed         in doubt
    429, from the carrier or a proxy of its    throttled
    2xx with the carrier's call id             accepted
    2xx without one                            in doubt
    3xx, 5xx                                   in doubt
    4xx that are not in the carrier's words    in doubt
    4xx in the carrier's words                 the rows below
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trunkline.telephony.carrier import Rejected, Throttled

# Refused because too many calls are live: the next one ends in tens of seconds, not in one.
CONCURRENCY_RETRY_S = 10.0
# A full queue at the slowest pace (one per second) has room again after a second.
QUEUE_RETRY_S = 1.0

Verdict = Literal["in_doubt", "not_this_call", "not_now", "too_fast", "too_many"]


@dataclass(frozen=True, slots=True)
class Row:
    """`not_this_call`: never for this destination. `not_now`: refused for the moment or for the account."""

    verdict: Verdict
    status: int | None = None
    code: str | None = None
    word: str = ""
    why: str = ""

    def fits(self, status: int, code: str, message: str) -> bool:
        return (
            self.status in (None, status)
            and self.code in (None, code)
            and (not self.word or self.word in message.lower())
        )


ROWS: Mapping[str, tuple[Row, ...]] = {
    "twilio": (
        Row("in_doubt", code="21204", why="call already initiated: the one refusal that admits a call"),
        Row("too_many", code="10004", why="concurrent calls of the account"),
        Row("too_fast", code="22005", why="the account's queue is full"),
        Row("too_fast", code="20429", why="too many requests"),
        Row("not_this_call", status=400, why="a parameter or the destination"),
        Row("not_now", status=401, why="credentials"),
        Row("not_now", status=403, why="account suspended or closed"),
        Row("not_now", status=404, why="no such account"),
        Row("not_now", status=405, why="our own mistake"),
    ),
    "plivo": (
        Row("not_now", status=400, word="credit", why="out of credit"),
        Row("too_many", status=400, word="concurrent", why="concurrent calls of the account"),
        Row("not_this_call", status=400, why="a parameter or the destination"),
        Row("not_now", status=401, why="credentials"),
        Row("not_now", status=402, why="out of credit"),
        Row("not_this_call", status=403, why="the destination's country is barred"),
        Row("not_now", status=404, why="no such account"),
        Row("not_now", status=405, why="our own mistake"),
        Row("not_this_call", status=422, why="a parameter"),
    ),
    "exotel": (
        Row("not_this_call", status=400, why="a parameter or the destination"),
        Row("not_now", status=401, why="credentials"),
        Row("not_now", status=402, why="balance or plan"),
        Row("not_this_call", status=403, word="ndnc", why="the person is on the national do-not-call list"),
        Row("not_this_call", status=403, word="dnd", why="the person is on the national do-not-call list"),
        Row("not_now", status=403, why="account suspended, KYC missing"),
        Row("not_now", status=404, why="no such account"),
    ),
    "vapi": (
        Row("too_many", status=400, word="concurren", why="concurrent calls of the organisation"),
        Row("not_now", status=400, word="limit", why="daily calls of a Vapi number"),
        Row("not_now", status=400, word="credit", why="wallet empty"),
        Row("not_now", status=400, word="balance", why="wallet empty"),
        Row("not_now", status=400, word="subscription", why="subscription frozen"),
        Row("not_this_call", status=400, why="a parameter or the destination"),
        Row("not_now", status=401, why="credentials"),
        Row("not_now", status=402, why="wallet empty"),
        Row("not_now", status=403, why="key lacks the right"),
        Row("not_now", status=404, why="no such assistant or number"),
    ),
}


def judge(carrier: str, status: int, code: str, message: str = "") -> Rejected | Throttled | None:
    """What a 4xx in the carrier's own words proves; None: nothing."""
    row = next((row for row in ROWS[carrier] if row.fits(status, code, message)), None)
    match row.verdict if row else "in_doubt":
        case "not_this_call":
            return Rejected("refused", code, retryable=False)
        case "not_now":
            return Rejected("refused", code, retryable=True)
        case "too_fast":
            return Throttled(QUEUE_RETRY_S)
        case "too_many":
            return Throttled(CONCURRENCY_RETRY_S, "concurrency")
        case _:
            return None

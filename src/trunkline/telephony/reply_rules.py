"""Every reply of a carrier to a dial, and what it proves. One table; every row has a test.

A row names a status, a code of the carrier or a word of its message; the first row that matches decides. A reply
without a row is in doubt, and so is every failure after the first byte was sent:

    failed before a byte was sent              rejected (not connected, not sent in time)
    time-out, reset, connection closed         in doubt
    429, from the carrier or a proxy of its    throttled
    2xx with the carrier's call id             accepted
    2xx without one                            in doubt
    3xx, 5xx                                   in doubt
    4xx that are not in the carrier's words    in doubt
    4xx in the carrier's words                 the rows below

A refusal has a cause, which decides its effect: a refused destination ends its lead, everything else starts a cooldown
of the account, of its calls to one country, or of the number (`dispatch/cooldowns.py`). The same codes classify a call
that was accepted and failed later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trunkline.telephony.carrier import Blame, Rejected, Throttled

# The retry time after a refusal because too many calls are live: the next one ends in tens of seconds.
CONCURRENCY_RETRY_S = 10.0
# A full queue at the slowest pace (one per second) has room again after a second.
QUEUE_RETRY_S = 1.0

# `never`: this destination is always refused. `unknown`: refused for an unknown cause.
ReplyVerdict = Literal[
    "in_doubt", "never", "destination", "country", "number", "account", "unknown", "too_fast", "too_many"
]
_BLAMES: Mapping[ReplyVerdict, Blame] = {
    "never": "destination",
    "destination": "destination",
    "country": "country",
    "number": "number",
    "account": "account",
    "unknown": "unknown",
}
# What an operator does about a refusal, unless its row has a remedy of its own.
REMEDIES: Mapping[Blame, str] = {
    "account": "Correct the account at the carrier, or its credentials here: a change here is tried at once.",
    "country": "Allow calls to this country in the carrier's console, under its geographic permissions.",
    "number": "Check at the carrier that the account owns the number and may call from it, or disable it here.",
    "network": "Check DNS, proxy and firewall between this process and the carrier.",
    "unknown": "Look the code up at the carrier. Several people in a row met it, and no call was taken between them.",
}


@dataclass(frozen=True, slots=True)
class ReplyRule:
    verdict: ReplyVerdict
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


def _codes(verdict: ReplyVerdict, codes: Mapping[str, str]) -> tuple[ReplyRule, ...]:
    return tuple(ReplyRule(verdict, code=code, why=why) for code, why in codes.items())


ROWS: Mapping[str, tuple[ReplyRule, ...]] = {
    "twilio": (
        ReplyRule("in_doubt", code="21204", why="call already initiated: the one refusal that admits a call"),
        ReplyRule("too_many", code="10004", why="concurrent calls of the account"),
        ReplyRule("too_fast", code="22005", why="the account's queue is full"),
        ReplyRule("too_fast", code="20429", why="too many requests"),
        *_codes(
            "never",
            {
                "21211": "no valid phone number",
                "21217": "no valid phone number",
                "13223": "no valid phone number",
                "13224": "no valid phone number, or one that Twilio does not call",
                "13225": "a number that Twilio bars",
            },
        ),
        *_codes(
            "destination",
            {
                "21202": "a premium number",
                "21214": "the number cannot be reached",
                "21216": "Twilio blocks calls to this number",
            },
        ),
        *_codes(
            "country",
            {
                "21203": "international calls are not enabled",
                "21215": "geographic permissions do not allow this country",
                "13227": "geographic permissions do not allow this country",
            },
        ),
        *_codes(
            "number",
            {
                "21210": "our number is not verified",
                "21212": "our number is no valid caller id",
                "21213": "no caller id",
                "21264": "our number is not verified",
                "21606": "our number is not one of the account's",
                "21659": "our number is not one of Twilio's",
                "21660": "our number belongs to another account",
            },
        ),
        *_codes(
            "account",
            {
                "10001": "the account is not active",
                "10002": "a trial account may not do this",
                "10005": "voice calls are disabled for the account",
                "20003": "wrong credentials",
                "20005": "the account is not active",
                "20008": "test credentials",
                "21205": "Twilio takes our URL for none",
                "21208": "Twilio refuses our ring time-out",
                "21209": "Twilio refuses our HTTP method",
                "21234": "Twilio refuses our machine detection",
                "21263": "Twilio refuses our machine detection",
            },
        ),
        ReplyRule("account", status=401, why="wrong credentials"),
        ReplyRule("account", status=403, why="the account is suspended or closed"),
        ReplyRule("account", status=404, why="no such account"),
        ReplyRule("account", status=405, why="our own mistake"),
        ReplyRule("unknown", status=400, why="a code that is in no row"),
    ),
    "plivo": (
        ReplyRule("too_many", status=400, word="concurrent", why="concurrent calls of the account"),
        ReplyRule("account", status=400, word="credit", why="out of credit"),
        ReplyRule("account", status=400, word="_url", why="Plivo takes our URL for none"),
        ReplyRule("country", status=400, word="country", why="the country is not enabled"),
        ReplyRule("number", status=400, word="from", why="our number is no valid caller id"),
        ReplyRule("number", status=400, word="caller", why="our number is no valid caller id"),
        ReplyRule("never", status=400, word="to parameter", why="no valid phone number"),
        ReplyRule("never", status=400, word="destination", why="no valid phone number"),
        ReplyRule("account", status=401, why="wrong credentials"),
        ReplyRule("account", status=402, why="out of credit"),
        ReplyRule("country", status=403, why="geographic permissions do not allow this country"),
        ReplyRule("account", status=404, why="no such account"),
        ReplyRule("account", status=405, why="our own mistake"),
        ReplyRule("unknown", status=400, why="a message that is in no row"),
        ReplyRule("unknown", status=422, why="a parameter"),
        # Hangup causes of calls that were accepted and failed later.
        ReplyRule("account", code="1010", why="out of credit"),
        ReplyRule("account", code="2070", why="our server is not where the country's law wants it"),
        ReplyRule("country", code="2030", why="geographic permissions do not allow this country"),
        ReplyRule("country", code="2050", why="geographic permissions do not allow this prefix"),
        ReplyRule("number", code="3030", why="our number is not one of the account's"),
        ReplyRule("number", code="3140", why="our number may only be called"),
        ReplyRule("too_many", code="5030", why="concurrent calls of the account"),
    ),
    "exotel": (
        ReplyRule("number", status=400, word="callerid", why="our number is no valid caller id"),
        ReplyRule("number", status=400, word="exophone", why="our number is not one of the account's"),
        ReplyRule("account", status=400, word="url", why="Exotel takes our URL for none"),
        ReplyRule("never", status=403, word="ndnc", why="the person is on the national do-not-call list"),
        ReplyRule("never", status=403, word="dnd", why="the person is on the national do-not-call list"),
        ReplyRule("account", status=401, why="wrong credentials"),
        ReplyRule("account", status=402, why="balance or plan"),
        ReplyRule("account", status=403, why="the account is suspended, or its KYC is missing"),
        ReplyRule("account", status=404, why="no such account"),
        ReplyRule("unknown", status=400, why="a parameter or the destination"),
    ),
    "vapi": (
        ReplyRule("too_many", status=400, word="concurren", why="concurrent calls of the organisation"),
        ReplyRule("country", status=400, word="international", why="the number makes no international calls"),
        ReplyRule("number", status=400, word="limit", why="daily calls of a Vapi number"),
        ReplyRule("account", status=400, word="credit", why="wallet empty"),
        ReplyRule("account", status=400, word="balance", why="wallet empty"),
        ReplyRule("account", status=400, word="wallet", why="wallet empty"),
        ReplyRule("account", status=400, word="subscription", why="subscription frozen"),
        ReplyRule("never", status=400, word="customer.number", why="no valid phone number"),
        ReplyRule("number", status=400, word="phonenumber", why="the organisation has no such number"),
        ReplyRule("account", status=400, word="assistant", why="the assistant is not valid"),
        ReplyRule("account", status=401, why="wrong key"),
        ReplyRule("account", status=402, why="wallet empty"),
        ReplyRule("account", status=403, why="the key lacks the right"),
        ReplyRule("account", status=404, why="no such assistant or number"),
        ReplyRule("unknown", status=400, why="a message that is in no row"),
        # End reasons of calls that were accepted.
        *_codes(
            "account",
            {
                "assistant-not-found": "no such assistant",
                "assistant-not-valid": "the assistant is not valid",
                "call-start-error-neither-assistant-nor-server-set": "no assistant",
                "call.start.error-get-org": "the organisation was not found",
                "call.start.error-get-subscription": "the subscription was not found",
                "call.start.error-get-assistant": "no such assistant",
                "call.start.error-fraud-check-failed": "Vapi suspects fraud",
                "call.start.error-subscription-frozen": "subscription frozen",
                "call.start.error-subscription-insufficient-credits": "wallet empty",
                "call.start.error-subscription-upgrade-failed": "the subscription could not grow",
                "call.start.error-subscription-wallet-does-not-exist": "no wallet",
            },
        ),
        *_codes(
            "number",
            {
                "call.start.error-get-phone-number": "the organisation has no such number",
                "call.start.error-vapi-number-outbound-daily-limit": "daily calls of a Vapi number",
            },
        ),
        *_codes(
            "country",
            {"call.start.error-vapi-number-international": "the number makes no international calls"},
        ),
        *_codes(
            "too_many",
            {
                "call.start.error-subscription-concurrency-limit-reached": "concurrent calls of the organisation"
            },
        ),
    ),
}


def judge(carrier: str, status: int, code: str, message: str = "") -> Rejected | Throttled | None:
    """What a 4xx of the carrier itself proves; None: nothing."""
    row = next((row for row in ROWS[carrier] if row.fits(status, code, message)), None)
    return None if row is None else _meaning(row, code)


def judge_end(carrier: str, code: str) -> Rejected | Throttled | None:
    """Why an accepted call failed. None: by the called person, or for an unknown reason."""
    row = next((row for row in ROWS.get(carrier, ()) if code and row.code == code), None)
    if row is None or row.verdict in ("never", "destination"):
        return None
    return _meaning(row, code)


def our_fault(carrier: str, code: str | None) -> str:
    """The code of an end, if the call failed by the account's or the number's fault."""
    return code if code and judge_end(carrier, code) is not None else ""


def _meaning(row: ReplyRule, code: str) -> Rejected | Throttled | None:
    match row.verdict:
        case "in_doubt":
            return None
        case "too_fast":
            return Throttled(QUEUE_RETRY_S)
        case "too_many":
            return Throttled(CONCURRENCY_RETRY_S, "concurrency")
        case verdict:
            is_retryable = verdict != "never"
            return Rejected("refused", code, retryable=is_retryable, blames=_BLAMES[verdict], why=row.why)

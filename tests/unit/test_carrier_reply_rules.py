"""The reply rules, row by row and carrier by carrier: what a reply proves, in that carrier's own format."""

import json
from collections.abc import Callable

import pytest

from trunkline.http.connections import Exchange, HttpReply, NotSent, ReplyLost
from trunkline.telephony.carrier import Accepted, InDoubt, PlaceResult, Rejected, Throttled
from trunkline.telephony.carrier_registry import CARRIERS
from trunkline.telephony.exotel import Exotel
from trunkline.telephony.http_carrier import HttpCarrier
from trunkline.telephony.plivo import Plivo
from trunkline.telephony.reply_rules import (
    CONCURRENCY_RETRY_S,
    QUEUE_RETRY_S,
    REMEDIES,
    ROWS,
    ReplyRule,
    ReplyVerdict,
    judge_end,
)
from trunkline.telephony.twilio import Twilio
from trunkline.telephony.vapi import Vapi
from trunkline.value import replace

CLASSES: dict[str, type[HttpCarrier]] = {"twilio": Twilio, "plivo": Plivo, "exotel": Exotel, "vapi": Vapi}
# How each carrier says an error, and that it has a call.
ERRORS: dict[str, Callable[[int, str, str], object]] = {
    "twilio": lambda status, code, message: {"code": int(code), "message": message, "status": status},
    "plivo": lambda status, code, message: {"api_id": "1", "error": message},
    "exotel": lambda status, code, message: {"RestException": {"Status": status, "Message": message}},
    "vapi": lambda status, code, message: {"statusCode": status, "message": message, "error": "Error"},
}
CREATED: dict[str, object] = {
    "twilio": {"sid": "1"},
    "plivo": {"request_uuid": "1", "message": "call fired", "api_id": "2"},
    "exotel": {"Call": {"Sid": "1", "Status": "in-progress"}},
    "vapi": {"id": "1", "status": "queued"},
}
RESULTS: dict[ReplyVerdict, Callable[[str], PlaceResult | type[InDoubt]]] = {
    "in_doubt": lambda code: InDoubt,
    "never": lambda code: Rejected("refused", code, retryable=False, blames="destination"),
    "destination": lambda code: Rejected("refused", code, retryable=True, blames="destination"),
    "country": lambda code: Rejected("refused", code, retryable=True, blames="country"),
    "number": lambda code: Rejected("refused", code, retryable=True, blames="number"),
    "account": lambda code: Rejected("refused", code, retryable=True, blames="account"),
    "unknown": lambda code: Rejected("refused", code, retryable=True, blames="unknown"),
    "too_fast": lambda code: Throttled(QUEUE_RETRY_S),
    "too_many": lambda code: Throttled(CONCURRENCY_RETRY_S, "concurrency"),
}


def reply(status: int, body: object) -> HttpReply:
    return HttpReply(status, {}, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_every_carrier_has_reply_rules() -> None:
    assert set(ROWS) == set(CLASSES) == set(CARRIERS)


@pytest.mark.parametrize(
    ("carrier", "row"),
    [(carrier, row) for carrier, rows in ROWS.items() for row in rows],
    ids=lambda value: value if isinstance(value, str) else f"{value.status} {value.code} {value.word}",
)
def test_each_reply_rule_yields_its_verdict(carrier: str, row: ReplyRule) -> None:
    status = row.status or 400
    code = row.code or ("99999" if carrier == "twilio" else str(status))
    result: PlaceResult | None = CLASSES[carrier].classify(
        reply(status, ERRORS[carrier](status, code, f"because of {row.word}"))
    )
    if row.code and carrier != "twilio":
        result = judge_end(carrier, code)  # the code of an end: no request is refused with it
    if isinstance(result, Rejected):
        assert result.why == row.why
        result = replace(result, why="")
    wanted = RESULTS[row.verdict](code)
    assert isinstance(result, InDoubt) if wanted is InDoubt else result == wanted
    assert row.why


@pytest.mark.parametrize(
    ("carrier", "status", "code", "message", "blames"),
    [
        ("twilio", 401, "20003", "", "account"),
        ("twilio", 403, "99999", "", "account"),
        ("twilio", 400, "21205", "", "account"),
        ("twilio", 400, "21210", "", "number"),
        ("twilio", 400, "21212", "", "number"),
        ("twilio", 400, "21213", "", "number"),
        ("twilio", 400, "21606", "", "number"),
        ("twilio", 400, "21215", "", "country"),
        ("twilio", 400, "99999", "", "unknown"),
        ("plivo", 401, "", "", "account"),
        ("plivo", 400, "", "insufficient credit", "account"),
        ("plivo", 400, "", "answer_url parameter is not valid", "account"),
        ("plivo", 400, "", "from parameter is not valid", "number"),
        ("plivo", 403, "", "", "country"),
        ("plivo", 400, "", "something new", "unknown"),
        ("exotel", 401, "", "", "account"),
        ("exotel", 400, "", "CallerId is not valid", "number"),
        ("exotel", 400, "", "something new", "unknown"),
        ("vapi", 401, "", "", "account"),
        ("vapi", 400, "", "wallet is empty", "account"),
        ("vapi", 400, "", "phoneNumberId does not exist", "number"),
        ("vapi", 400, "", "something new", "unknown"),
    ],
)
def test_a_refusal_by_our_fault_is_retryable_and_blames_account_or_number(
    carrier: str, status: int, code: str, message: str, blames: str
) -> None:
    """Said once more, apart from the table: a row that was changed to blame the destination would end every lead."""
    error = ERRORS[carrier](status, code or "0", message)
    result = CLASSES[carrier].classify(reply(status, error))
    assert isinstance(result, Rejected)
    assert (result.blames, result.retryable) == (blames, True)


@pytest.mark.parametrize(
    ("carrier", "code", "blames"),
    [
        ("twilio", "13227", "country"),
        ("twilio", "10001", "account"),
        ("plivo", "1010", "account"),
        ("plivo", "3030", "number"),
        ("vapi", "call.start.error-subscription-frozen", "account"),
        ("vapi", "call.start.error-vapi-number-outbound-daily-limit", "number"),
    ],
)
def test_an_end_code_of_our_fault_blames_account_or_number(carrier: str, code: str, blames: str) -> None:
    judged = judge_end(carrier, code)
    assert isinstance(judged, Rejected)
    assert judged.blames == blames


@pytest.mark.parametrize(
    ("carrier", "code"),
    [
        ("twilio", ""),
        ("twilio", "21211"),
        ("plivo", "3010"),
        ("plivo", "2000"),
        ("vapi", "customer-busy"),
        ("exotel", ""),
    ],
)
def test_an_end_code_of_the_callee_blames_neither_account_nor_number(carrier: str, code: str) -> None:
    assert judge_end(carrier, code) is None


@pytest.mark.parametrize("carrier", CLASSES)
def test_every_verdict_that_cools_something_down_has_a_remedy(carrier: str) -> None:
    for row in ROWS[carrier]:
        if row.verdict in ("account", "country", "number", "unknown"):
            assert REMEDIES[row.verdict]


# What no row names, whoever the carrier is.
OTHERS: dict[str, tuple[Exchange, type[PlaceResult]]] = {
    "could not connect": (NotSent("not_connected", "ClientConnectorError"), Rejected),
    "connected after the deadline": (NotSent("not_sent_in_time", "late"), Rejected),
    "time-out after sending": (ReplyLost("TimeoutError"), InDoubt),
    "reset after sending": (ReplyLost("ClientOSError"), InDoubt),
    "closed without a reply": (ReplyLost("ServerDisconnectedError"), InDoubt),
    "reply cut short": (ReplyLost("ClientPayloadError"), InDoubt),
    "429 of a proxy": (reply(429, b"<html>slow down</html>"), Throttled),
    "2xx that is not JSON": (reply(201, b"<html>It works!</html>"), InDoubt),
    "2xx that is empty": (reply(204, b""), InDoubt),
    "2xx that is a list": (reply(200, []), InDoubt),
    "2xx without an id": (reply(201, {"status": "queued"}), InDoubt),
    "redirect": (reply(307, b""), InDoubt),
    "403 of a firewall": (reply(403, b"<html>Blocked</html>"), InDoubt),
    "404 of a proxy": (reply(404, b"no such host"), InDoubt),
    "408 of a proxy": (reply(408, b""), InDoubt),
    "400 with other JSON": (reply(400, {"oops": True}), InDoubt),
    "500": (reply(500, b"Internal Server Error"), InDoubt),
    "502": (reply(502, b"Bad Gateway"), InDoubt),
    "503": (reply(503, b"Service Unavailable"), InDoubt),
    "504": (reply(504, b"Gateway Time-out"), InDoubt),
}


@pytest.mark.parametrize("carrier", CLASSES)
@pytest.mark.parametrize("what", OTHERS)
def test_a_reply_without_a_rule_is_in_doubt_unless_nothing_was_sent(carrier: str, what: str) -> None:
    exchange, kind = OTHERS[what]
    assert isinstance(CLASSES[carrier].classify(exchange), kind)


@pytest.mark.parametrize("carrier", CLASSES)
@pytest.mark.parametrize("status", [409, 410, 418, 451])
def test_a_refusal_with_a_status_without_a_rule_is_in_doubt(carrier: str, status: int) -> None:
    said = ERRORS[carrier](status, "99999", "something new")
    assert isinstance(CLASSES[carrier].classify(reply(status, said)), InDoubt)


@pytest.mark.parametrize("carrier", CLASSES)
def test_a_5xx_in_the_carriers_own_words_is_still_in_doubt(carrier: str) -> None:
    said = ERRORS[carrier](500, "20500", "internal error")
    assert isinstance(CLASSES[carrier].classify(reply(500, said)), InDoubt)


@pytest.mark.parametrize("carrier", CLASSES)
def test_a_reply_with_a_call_id_is_accepted(carrier: str) -> None:
    assert CLASSES[carrier].classify(reply(201, CREATED[carrier])) == Accepted("1")


@pytest.mark.parametrize("carrier", CLASSES)
def test_the_error_format_of_one_carrier_is_not_read_as_anothers(carrier: str) -> None:
    for other, say in ERRORS.items():
        if other != carrier:
            result = CLASSES[carrier].classify(reply(400, say(400, "21211", "no")))
            assert isinstance(result, InDoubt), other


def test_vapi_takes_a_call_over_its_limit_and_does_not_say_how_long_it_waits() -> None:
    body = {"id": "1", "subscriptionLimits": {"concurrencyBlocked": True, "concurrencyLimit": 10}}
    result = CLASSES["vapi"].classify(reply(201, body))
    assert result == Accepted("1", None)
    assert isinstance(result, Accepted)
    assert result.queued_ms != 0


def test_vapis_batch_answer_is_not_an_answer_to_one_call() -> None:
    body = {"results": [], "errors": [{"customer": {"number": "+1"}, "error": "no"}]}
    assert isinstance(CLASSES["vapi"].classify(reply(201, body)), InDoubt)

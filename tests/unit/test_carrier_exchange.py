"""The table of DESIGN 5.5: each row a test, for Twilio's words."""

import json
from datetime import UTC, datetime
from typing import Literal

import pytest

from trunkline.http.connections import Exchange, HttpReply, NotSent, ReplyLost
from trunkline.telephony.carrier import Accepted, Blame, InDoubt, PlaceResult, Rejected, Throttled
from trunkline.telephony.http_carrier import retry_after_s
from trunkline.telephony.twilio import Twilio

GEOGRAPHY = "geographic permissions do not allow this country"
NOW = datetime(2025, 11, 15, 8, 0, tzinfo=UTC)


def reply(status: int, body: object = "", **headers: str) -> HttpReply:
    data = body if isinstance(body, str) else json.dumps(body)
    return HttpReply(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, data.encode()
    )


def refusal(status: int, code: int) -> HttpReply:
    return reply(status, {"code": code, "message": "no", "status": status})


def refused(code: str, blames: Blame, why: str, *, retryable: bool = True) -> Rejected:
    return Rejected("refused", code, retryable, blames, why)


def unsent(reason: Literal["not_connected", "not_sent_in_time"], blames: Blame) -> Rejected:
    return Rejected(reason, "X", retryable=True, blames=blames)


TABLE: list[tuple[str, Exchange, PlaceResult]] = [
    ("2xx with an id", reply(201, {"sid": "CA1", "queue_time": "1500"}), Accepted("CA1", 1500)),
    ("200 with an id", reply(200, {"sid": "CA1"}), Accepted("CA1", 0)),
    ("odd queue time", reply(201, {"sid": "CA1", "queue_time": None}), Accepted("CA1", 0)),
    ("2xx without an id", reply(201, {"status": "queued"}), InDoubt("status 201 without a call id")),
    ("2xx with an empty id", reply(201, {"sid": ""}), InDoubt("status 201 without a call id")),
    ("2xx with a number for an id", reply(201, {"sid": 7}), InDoubt("status 201 without a call id")),
    ("2xx that is not JSON", reply(200, "<html>ok</html>"), InDoubt("status 200 without a call id")),
    ("2xx that is a list", reply(200, [{"sid": "CA1"}]), InDoubt("status 200 without a call id")),
    ("2xx that is empty", reply(204), InDoubt("status 204 without a call id")),
    ("invalid number", refusal(400, 21211), refused("21211", "destination", "no valid phone number", retryable=False)),
    ("no permission", refusal(400, 21215), refused("21215", "country", GEOGRAPHY)),
    ("full queue", refusal(400, 22005), Throttled(1.0)),
    ("concurrency limit", refusal(400, 10004), Throttled(10.0, "concurrency")),
    ("wrong credentials", refusal(401, 20003), refused("20003", "account", "wrong credentials")),
    ("forbidden", refusal(403, 20403), refused("20403", "account", "the account is suspended or closed")),
    ("already initiated", refusal(400, 21204), InDoubt("status 400, not in the carrier's words")),
    ("4xx of a proxy", reply(403, "<html>WAF</html>"), InDoubt("status 403, not in the carrier's words")),
    ("408 of a proxy", reply(408), InDoubt("status 408, not in the carrier's words")),
    ("4xx with other JSON", reply(400, {"error": "x"}), InDoubt("status 400, not in the carrier's words")),
    ("4xx with odd code", reply(400, {"code": "", "message": ""}), InDoubt("status 400, not in the carrier's words")),
    ("429", refusal(429, 20429), Throttled(1.0)),
    ("429 with a time", reply(429, "", retry_after="7"), Throttled(7.0)),
    ("429 of a proxy", reply(429, "<html>slow</html>"), Throttled(1.0)),
    ("500", refusal(500, 20500), InDoubt("status 500")),
    ("502", reply(502, "<html>"), InDoubt("status 502")),
    ("503", refusal(503, 20503), InDoubt("status 503")),
    ("504", reply(504), InDoubt("status 504")),
    ("301", reply(301, "", location="https://elsewhere"), InDoubt("status 301")),
    ("307", reply(307, "", location="https://elsewhere"), InDoubt("status 307")),
    ("lost after sending", ReplyLost("TimeoutError"), InDoubt("TimeoutError")),
    ("never connected", NotSent("not_connected", "X"), unsent("not_connected", "network")),
    ("too late", NotSent("not_sent_in_time", "X"), unsent("not_sent_in_time", "nobody")),
]  # fmt: skip


@pytest.mark.parametrize(("exchange", "result"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_an_http_exchange_is_classified_as_its_place_result(exchange: Exchange, result: PlaceResult) -> None:
    assert Twilio.classify(exchange) == result


@pytest.mark.parametrize("status", [*range(300, 429), *range(430, 600)])
def test_an_error_status_without_the_carriers_error_body_is_in_doubt(status: int) -> None:
    assert isinstance(Twilio.classify(reply(status, "not theirs")), InDoubt)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("Sat, 15 Nov 2025 08:00:09 GMT", 9.0),
        ("Sat, 15 Nov 2025 07:00:00 GMT", 0.0),
        ("99999999", 3600.0),
        ("", 1.0),
        ("soon", 1.0),
        ("-3", 1.0),
        ("nan", 1.0),
        ("²", 1.0),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_bounded(text: str, seconds: float) -> None:
    assert retry_after_s(reply(429, "", retry_after=text), NOW) == seconds

"""The webhook endpoint on a real socket: whom it believes, what it keeps, and what it leaves no trace of."""

import asyncio
import json
from collections.abc import AsyncIterator
from io import BytesIO
from ipaddress import ip_network
from urllib.parse import urlencode, urlsplit
from uuid import UUID, uuid4

import pytest
from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]

from tests.support.api.webhooks import EXAMPLES, KEYS, TWILIO_TOKEN, Door, count, open_door, reverse_proxy
from tests.support.faults.proxy import TcpProxy
from tests.support.waiting import eventually
from trunkline.http.connections import basic
from trunkline.router.allocator import Stream
from trunkline.routing import Unallocated, WhyUnallocated
from trunkline.telemetry import metrics
from trunkline.telephony.callbacks import basic_password, verify_callback
from trunkline.telephony.carrier import CallbackTag
from trunkline.telephony.carrier_registry import CarrierAccount
from trunkline.telephony.forms import FORM

SIGNER = RequestValidator(TWILIO_TOKEN)
ENDED = {"CallSid": "CA1", "CallStatus": "completed", "SequenceNumber": "3", "CallDuration": "42"}


@pytest.fixture
async def door(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Door]:
    async with open_door(database_url, redis_url, key_prefix) as door:
        yield door


async def post(
    door: Door, url: str, fields: dict[str, str], signed_url: str = "", token: str = "", **headers: str
) -> tuple[int, bytes]:
    """Signed as Twilio does, by Twilio's own SDK, for the URL that it was given."""
    signer = RequestValidator(token) if token else SIGNER
    proof = signer.compute_signature(signed_url or url, fields)
    sent = {"Content-Type": FORM, "X-Twilio-Signature": proof, **headers}
    async with door.http.post(door.here(url), data=urlencode(fields), headers=sent) as answer:
        return answer.status, await answer.read()


# --- kept, once


async def test_a_genuine_webhook_is_stored_before_it_is_answered(door: Door) -> None:
    status, body = await post(door, door.callback("twilio", "status", uuid4()), ENDED)
    assert (status, body) == (204, b"")
    assert await door.events() == ["ended"]


async def test_a_repeated_webhook_is_stored_once(door: Door) -> None:
    url = door.callback("twilio", "status", uuid4())
    before = count(metrics.WEBHOOKS_REPEATED, carrier="twilio")
    statuses = [(await post(door, url, ENDED))[0] for _ in range(3)]
    assert statuses == [204, 204, 204]
    assert await door.events() == ["ended"]
    assert count(metrics.WEBHOOKS_REPEATED, carrier="twilio") == before + 2


async def test_concurrent_webhooks_are_all_stored(door: Door) -> None:
    urls = [door.callback("twilio", "status", uuid4()) for _ in range(60)]
    answers = await asyncio.gather(*(post(door, url, ENDED) for url in urls))
    assert {status for status, _ in answers} == {204}
    assert len(await door.events()) == 60


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("recording", {"CallSid": "CA1", "RecordingSid": "RE1", "RecordingStatus": "completed"}),
        ("machine", {"CallSid": "CA1", "AnsweredBy": "machine_end_beep"}),
    ],
)
async def test_recording_and_machine_webhooks_are_stored(
    door: Door, kind: str, fields: dict[str, str]
) -> None:
    url = door.callback("twilio", kind, uuid4())  # type: ignore[arg-type]
    assert (await post(door, url, fields))[0] == 204
    assert await door.events() == [kind]


async def test_what_becomes_of_a_stream_is_kept_once_however_often_it_is_told(door: Door) -> None:
    url = door.callback("twilio", "stream", uuid4())
    for word in ("stream-started", "stream-error", "stream-started", "stream-stopped", "stream-error"):
        told = {"CallSid": "CA1", "StreamSid": "MZ1", "StreamEvent": word}
        assert (await post(door, url, told))[0] == 204
    assert await door.events() == ["stream_began", "stream_failed", "stream_ended"]


async def test_a_genuine_webhook_that_cannot_be_parsed_is_answered_and_not_stored(door: Door) -> None:
    odd = {"CallSid": "CA1", "CallStatus": "hovering"}
    assert (await post(door, door.callback("twilio", "status", uuid4()), odd))[0] == 202
    assert await door.events() == []


async def test_exotels_webhook_is_answered_200_and_needs_its_password(door: Door) -> None:
    url = door.here(door.callback("exotel", "status", uuid4()))
    body = {"CallSid": "1", "Status": "completed", "EventType": "terminal"}
    async with door.http.post(url, json=body) as asked:
        assert asked.status == 401
        assert asked.headers["WWW-Authenticate"].startswith("Basic")
    password = basic("trunkline", basic_password("exotel", "default", KEYS.keys[0]))
    async with door.http.post(url, json=body, headers={"Authorization": password}) as kept:
        assert kept.status == 200
    assert await door.events() == ["ended"]


async def test_vapis_messages_are_stored(door: Door) -> None:
    url = door.here(door.callback("vapi", "status", uuid4()))
    message = {"message": {"type": "status-update", "status": "in-progress", "call": {"id": "1"}}}
    secret = {"X-Vapi-Secret": EXAMPLES["vapi"]["webhook_secret"]}
    async with door.http.post(url, json=message, headers=secret) as kept:
        assert kept.status == 204
    async with door.http.post(url, json=message, headers={"X-Vapi-Secret": "guess"}) as forged:
        assert forged.status == 403
    assert await door.events() == ["answered"]


# --- forged: no trace but a metric


async def rows(door: Door) -> int:
    async with door.database.connection() as conn:
        tables = ("mailboxes", "mailbox_events", "attempts", "audit_log", "alarms")
        return sum([await conn.fetchval(f"SELECT count(*) FROM {table}") for table in tables])


@pytest.mark.parametrize(
    "path",
    [
        "/webhooks/twilio/status",
        "/webhooks/twilio/status?attempt={attempt}&sig=guess",
        "/webhooks/pigeon/status?attempt={attempt}&sig=guess",
        "/webhooks/twilio/answer?sig=x",
        "/webhooks/exotel/inbound?sig=",
    ],
)
async def test_a_url_that_is_not_ours_is_refused(door: Door, path: str) -> None:
    url = door.url + path.format(attempt=uuid4())
    before, known = count(metrics.WEBHOOKS_REJECTED), await rows(door)
    assert (await post(door, url, ENDED))[0] == 403
    assert count(metrics.WEBHOOKS_REJECTED) == before + 1
    assert await rows(door) == known
    assert door.streams == []


async def test_a_wrong_signature_on_a_right_url_is_refused(door: Door) -> None:
    url = door.callback("twilio", "status", uuid4())
    before, known = count(metrics.WEBHOOKS_REJECTED, carrier="twilio", reason="forged"), await rows(door)
    assert (await post(door, url, ENDED, token="guess"))[0] == 403
    assert (await post(door, url, ENDED, signed_url=url + "x"))[0] == 403
    assert count(metrics.WEBHOOKS_REJECTED, carrier="twilio", reason="forged") == before + 2
    assert await rows(door) == known


async def test_the_url_that_the_server_sees_is_shown_for_a_signed_url_only(door: Door) -> None:
    url = door.callback("twilio", "status", uuid4())
    async with door.http.get(door.here(url)) as shown:
        assert (shown.status, url in (await shown.json())["urls"]) == (200, True)
    before = count(metrics.WEBHOOKS_REJECTED)
    async with door.http.get(door.here(url + "x")) as refused:
        assert refused.status == 403
    assert count(metrics.WEBHOOKS_REJECTED) == before + 1


async def test_unknown_carrier_names_do_not_become_metric_labels(door: Door) -> None:
    async with door.http.post(f"{door.url}/webhooks/made-up-{uuid4()}/status", data=b"x") as answer:
        assert answer.status == 403
    labels = {s.labels["carrier"] for family in metrics.WEBHOOKS_REJECTED.collect() for s in family.samples}
    assert not any(label.startswith("made-up") for label in labels)


async def test_a_forged_url_is_refused_before_its_body_has_come(door: Door) -> None:
    """The body never comes: nobody waits for it."""
    parts = urlsplit(door.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        b"POST /webhooks/twilio/status?sig=guess HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    )
    async with asyncio.timeout(10):
        assert (await reader.readline()).split()[1] == b"403"
    writer.close()
    await writer.wait_closed()


async def test_an_account_that_does_not_exist_is_refused(door: Door) -> None:
    assert (await post(door, door.callback("twilio", "status", uuid4(), "nobody"), ENDED))[0] == 403


async def test_a_webhook_of_a_week_ago_is_refused(door: Door) -> None:
    old = ENDED | {"Timestamp": "Sat, 15 Nov 2014 07:59:30 +0000"}
    assert (await post(door, door.callback("twilio", "status", uuid4()), old))[0] == 403
    assert await door.events() == []


async def test_a_body_larger_than_any_webhook_is_refused(door: Door) -> None:
    url = door.here(door.callback("twilio", "status", uuid4()))
    async with door.http.post(url, data=BytesIO(b"x" * (1024 * 1024 + 1))) as answer:
        assert answer.status == 413


async def test_an_accounts_webhook_verifies_by_its_own_token_only(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    second = CarrierAccount({"account_sid": "AC2", "auth_token": "second-token"}, KEYS, name="second")
    accounts = {("twilio", "second"): second}
    async with open_door(database_url, redis_url, key_prefix, accounts=accounts) as door:
        url = door.callback("twilio", "status", uuid4(), "second")
        assert (await post(door, url, ENDED))[0] == 403
        assert (await post(door, url, ENDED, token="second-token"))[0] == 204
        assert (await post(door, door.callback("twilio", "status", uuid4()), ENDED, token="second-token"))[
            0
        ] == 403


# --- behind a proxy


PUBLIC = "https://calls.example.com"
HTTPS = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "calls.example.com"}
LOOPBACK = ip_network("127.0.0.0/8")


async def test_behind_a_proxy_signatures_verify_against_the_public_base_url(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """TLS ends at the proxy, the host is another one: neither is what the carrier signed."""
    async with (
        open_door(database_url, redis_url, key_prefix, public_base_url=PUBLIC) as door,
        reverse_proxy(door.url, {}) as proxy,
    ):
        url = door.callback("twilio", "status", uuid4())
        assert url.startswith(PUBLIC)
        proof = SIGNER.compute_signature(url, ENDED)
        sent = {"Content-Type": FORM, "X-Twilio-Signature": proof}
        async with door.http.post(url.replace(PUBLIC, proxy), data=urlencode(ENDED), headers=sent) as answer:
            assert answer.status == 204


async def test_a_path_prefix_stripped_by_the_proxy_is_part_of_the_signed_url(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    public = f"{PUBLIC}/voice"
    async with (
        open_door(database_url, redis_url, key_prefix, public_base_url=public) as door,
        reverse_proxy(door.url, {}, strip="/voice") as proxy,
    ):
        url = door.callback("twilio", "status", uuid4())
        sent = {"Content-Type": FORM, "X-Twilio-Signature": SIGNER.compute_signature(url, ENDED)}
        async with door.http.post(url.replace(PUBLIC, proxy), data=urlencode(ENDED), headers=sent) as answer:
            assert answer.status == 204


@pytest.mark.parametrize(
    ("trusted", "headers", "status"),
    [
        ([LOOPBACK], HTTPS, 204),
        (
            [LOOPBACK],
            {"X-Forwarded-Proto": "https, http", "X-Forwarded-Host": "calls.example.com, inner"},
            204,
        ),
        ([LOOPBACK], {"X-Forwarded-Proto": "http", "X-Forwarded-Host": "calls.example.com"}, 403),
        ([LOOPBACK], {}, 403),
        ([], HTTPS, 403),
        ([ip_network("10.0.0.0/8")], HTTPS, 403),
    ],
)
async def test_forwarded_host_and_scheme_are_used_from_trusted_addresses_only(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    trusted: list,  # type: ignore[type-arg]
    headers: dict[str, str],
    status: int,
) -> None:
    async with (
        open_door(database_url, redis_url, key_prefix, trusted=trusted) as door,
        reverse_proxy(door.url, headers) as proxy,
    ):
        url = door.callback("twilio", "status", uuid4()).replace(door.url, PUBLIC)
        sent = {"Content-Type": FORM, "X-Twilio-Signature": SIGNER.compute_signature(url, ENDED)}
        async with door.http.post(url.replace(PUBLIC, proxy), data=urlencode(ENDED), headers=sent) as answer:
            assert answer.status == status


async def test_the_public_base_url_takes_precedence_over_forwarded_headers(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_door(
        database_url, redis_url, key_prefix, public_base_url=PUBLIC, trusted=[LOOPBACK]
    ) as door:
        url = door.callback("twilio", "status", uuid4())
        lies = {"X-Forwarded-Proto": "http", "X-Forwarded-Host": "evil.example.com"}
        assert (await post(door, url, ENDED, **lies))[0] == 204


# --- what the carrier shall do


def stream_url(body: bytes) -> str:
    return body.decode().partition('url="')[2].partition('"')[0]


ANSWERED = {"CallSid": "CA1", "CallStatus": "in-progress", "Direction": "outbound-api"}


async def test_an_answered_call_of_an_unknown_attempt_is_connected(door: Door) -> None:
    attempt = uuid4()
    status, body = await post(door, door.callback("twilio", "answer", attempt), ANSWERED)
    assert (status, stream_url(body)) == (200, "wss://pods.example.com/ws/1")
    assert b'<Parameter name="token" value="t"' in body
    assert door.streams == [("CA1", attempt)]
    assert await door.events() == ["answered"]


@pytest.mark.parametrize(
    ("answer", "says"), [("busy", b"<Say>"), ("ended", b"<Response><Hangup"), ("hold", b"<Redirect")]
)
async def test_without_a_pod_the_carrier_gets_a_document(
    door: Door, answer: WhyUnallocated, says: bytes
) -> None:
    door.stream = Unallocated(answer)
    status, body = await post(door, door.callback("twilio", "answer", uuid4()), ANSWERED)
    assert status == 200
    assert says in body
    await door.written()
    async with door.database.connection() as conn:
        told = await conn.fetchval("SELECT payload ? 'agent_joined' FROM mailbox_events")
    assert told is (answer == "busy"), "that there was no agent decides what becomes of the lead"


async def test_the_hold_document_redirects_to_a_signed_url(door: Door) -> None:
    door.stream = Unallocated("hold")
    attempt = uuid4()
    _, body = await post(door, door.callback("twilio", "answer", attempt), ANSWERED)
    again = (
        body.decode()
        .partition('<Redirect method="POST">')[2]
        .partition("</Redirect>")[0]
        .partition("#")[0]  # orders to Twilio, neither sent nor signed
        .replace("&amp;", "&")
    )
    assert verify_callback(again, KEYS) == CallbackTag("twilio", "answer", attempt, held=1)
    door.stream = Stream("wss://pods.example.com/ws/2", {})
    assert stream_url((await post(door, again, ANSWERED))[1]) == "wss://pods.example.com/ws/2"


async def test_without_postgres_an_answered_call_is_connected_and_a_status_is_sent_again(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_door(database_url, redis_url, key_prefix) as door:
        inbound = {
            "CallSid": "CA2",
            "CallStatus": "ringing",
            "Direction": "inbound",
            "To": "+14155550100",
            "From": "+1",
        }
        door.database.pool.terminate()
        assert (await post(door, door.callback("twilio", "status", uuid4()), ENDED))[0] == 503
        for kind, attempt, fields in (("inbound", None, inbound), ("answer", uuid4(), ANSWERED)):
            status, body = await post(door, door.callback("twilio", kind, attempt), fields)  # type: ignore[arg-type]
            assert (status, stream_url(body)) == (200, "wss://pods.example.com/ws/1")


async def test_a_status_that_postgres_could_not_take_is_written_when_it_is_back(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """The carrier is asked to send it again, and does not."""
    async with (
        TcpProxy.before(database_url) as proxy,
        open_door(proxy.url, redis_url, key_prefix) as door,
    ):
        proxy.refuse()
        proxy.cut()
        attempt = uuid4()
        assert (await post(door, door.callback("twilio", "status", attempt), ENDED))[0] == 503
        await proxy.heal()

        async def is_written() -> bool:
            async with door.database.connection() as conn:
                return bool(await conn.fetchval("SELECT count(*) FROM mailbox_events WHERE type = 'ended'"))

        await eventually(is_written, what="the webhook is in the call's mailbox")


async def test_exotel_requests_by_get_and_is_answered_in_json(door: Door) -> None:
    from trunkline.telephony.callbacks import signed_attempt

    attempt = uuid4()
    kept = signed_attempt(attempt, "exotel", KEYS)
    url = (
        door.here(door.callback("exotel", "answer", None))
        + "&"
        + urlencode({"CallSid": "1", "CustomField": kept})
    )
    password = basic("trunkline", basic_password("exotel", "default", KEYS.keys[0]))
    async with door.http.get(url, headers={"Authorization": password}) as answer:
        assert answer.status == 200
        assert json.loads(await answer.read()) == {"url": "wss://pods.example.com/ws/1?token=t"}
    assert door.streams == [("1", attempt)]
    door.stream = Unallocated("busy")
    async with door.http.get(url, headers={"Authorization": password}) as answer:
        assert answer.status == 503


async def test_an_inbound_call_at_an_unknown_number_is_rejected(door: Door) -> None:
    ringing = {
        "CallSid": "CA9",
        "CallStatus": "ringing",
        "Direction": "inbound",
        "To": "+14155550100",
        "From": "+1",
    }
    status, body = await post(door, door.callback("twilio", "inbound", None), ringing)
    assert status == 200
    assert b"<Reject" in body
    assert door.streams == []


async def test_an_inbound_calls_end_finds_its_attempt_by_the_call_id(door: Door) -> None:
    from trunkline.dispatch.inbound import inbound_attempt_id

    over = {"CallSid": "CA9", "CallStatus": "completed", "Direction": "inbound", "CallDuration": "5"}
    assert (await post(door, door.callback("twilio", "status", None), over))[0] == 204
    async with door.database.connection() as conn:
        assert UUID(await conn.fetchval("SELECT key FROM mailboxes")) == inbound_attempt_id("twilio", "CA9")

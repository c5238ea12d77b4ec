"""Every answer request of a carrier gets a document, whatever fails, hangs, is down or is not known yet."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import pytest

from tests.integration.test_answer_gate import open_gate
from tests.integration.test_webhooks import ENDED, post, stream_url
from tests.support.api.webhooks import KEYS, SECRET, Door, count, open_door
from tests.support.faults.proxy import TcpProxy
from trunkline.errors import StoreUnavailable
from trunkline.http.connections import basic
from trunkline.routing import Unallocated, WhyUnallocated
from trunkline.schema.accounts import NewAccount
from trunkline.store import accounts as store_accounts
from trunkline.telemetry import metrics
from trunkline.telephony.accounts import AccountRefresher, AccountService, Vault
from trunkline.telephony.callbacks import basic_password, callback_url, fallback_of, signed_attempt
from trunkline.telephony.carrier import AnswerFallback
from trunkline.telephony.carrier_registry import CarrierAccount

ANSWERED = {"CallSid": "CA1", "CallStatus": "in-progress", "To": "+14155550123", "From": "+14155550100"}
RINGING = {**ANSWERED, "CallStatus": "ringing", "Direction": "inbound"}
FALLBACK = AnswerFallback(message="Nobody is here.")
APOLOGY = b"<Say>Nobody is here.</Say><Hangup />"
POD = "wss://pods.example.com/ws/1"
NEW = {"account_sid": "AC2", "auth_token": "the-new-token"}


@pytest.fixture
async def door(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Door]:
    async with open_door(database_url, redis_url, key_prefix, fallback=FALLBACK) as door:
        yield door


def count_of(got: str) -> float:
    return count(metrics.ANSWERS, carrier="twilio", got=got)


# --- whatever breaks or hangs


@pytest.mark.parametrize(("kind", "fields"), [("answer", ANSWERED), ("inbound", RINGING)])
async def test_after_an_exception_the_carrier_gets_the_last_resort_document(
    door: Door, monkeypatch: pytest.MonkeyPatch, kind: Any, fields: dict[str, str]
) -> None:
    async def explode(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("trunkline.api.webhooks.answers.Answers.reply", explode)
    before = count_of("last_resort")
    url = door.callback("twilio", kind, uuid4() if kind == "answer" else None)
    status, body = await post(door, url, fields)
    assert (status, APOLOGY in body) == (200, True)
    assert count_of("last_resort") == before + 1


@pytest.mark.parametrize(("url", "agent_joined"), [("", False), ("https://other.example.com/answer", True)])
async def test_a_last_resort_document_is_recorded_once_with_whether_an_agent_joined(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    agent_joined: bool,
) -> None:
    async def explode(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("trunkline.api.webhooks.answers.Answers.reply", explode)
    attempt = uuid4()
    async with open_door(database_url, redis_url, key_prefix, fallback=AnswerFallback(url)) as door:
        for _ in range(2):
            await post(door, door.callback("twilio", "answer", attempt), ANSWERED)
        assert await door.events() == ["document"], "once"
        async with door.database.connection() as conn:
            told = await conn.fetchrow(
                "SELECT m.key, e.payload FROM mailbox_events AS e JOIN mailboxes AS m ON m.id = e.mailbox_id"
            )
        assert told is not None
        assert (told["key"], told["payload"]["agent_joined"]) == (str(attempt), agent_joined)


@pytest.mark.parametrize(("kind", "fields"), [("answer", ANSWERED), ("inbound", RINGING)])
async def test_a_hanging_answer_is_replaced_by_the_last_resort_document(
    database_url: str,
    redis_url: str,
    key_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    fields: dict[str, str],
) -> None:
    over = asyncio.Event()

    async def hang(*_: object) -> None:
        while not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()

    monkeypatch.setattr("trunkline.api.webhooks.answers.Answers.reply", hang)
    async with open_door(database_url, redis_url, key_prefix, fallback=FALLBACK, answer_s=0.05) as door:
        url = door.callback("twilio", kind, uuid4() if kind == "answer" else None)
        status, body = await post(door, url, fields)
        over.set()
    assert (status, APOLOGY in body) == (200, True)


async def test_a_genuine_answer_request_that_cannot_be_parsed_gets_a_document(door: Door) -> None:
    url = door.callback("twilio", "answer", uuid4())
    status, body = await post(door, url, {**ANSWERED, "CallStatus": "levitating"})
    assert (status, APOLOGY in body) == (200, True)


async def test_a_request_to_an_unsigned_url_is_403_without_a_body(door: Door) -> None:
    url = door.callback("twilio", "answer", uuid4()).replace("sig=", "sig=x")
    assert await post(door, url, ANSWERED) == (403, b"")
    unknown = callback_url(door.url, "nobody", "answer", uuid4(), KEYS)
    assert (await post(door, unknown, ANSWERED))[0] == 403


# --- the event follows the document


async def test_the_document_does_not_wait_for_its_event_which_is_written_when_postgres_is_back(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with TcpProxy.before(database_url) as way, open_door(way.url, redis_url, key_prefix) as door:
        way.refuse()
        way.cut()
        status, body = await post(door, door.callback("twilio", "answer", uuid4()), ANSWERED)
        assert (status, stream_url(body)) == (200, POD)
        assert door.late_events is not None
        assert len(door.late_events) == 1
        await way.heal()
        assert await door.events() == ["answered"]


async def test_a_call_held_and_then_refused_records_that_no_agent_joined(door: Door) -> None:
    url = door.callback("twilio", "answer", uuid4())
    door.stream = Unallocated("hold")
    await post(door, url, ANSWERED)
    door.stream = Unallocated("busy")
    await post(door, url, ANSWERED)
    assert await door.events() == ["answered", "answered"]
    async with door.database.connection() as conn:
        told = await conn.fetch("SELECT payload ? 'agent_joined' AS told FROM mailbox_events ORDER BY seq")
    assert [row["told"] for row in told] == [False, True]


async def test_a_call_sent_to_the_fallback_url_records_an_external_agent(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    fallback = AnswerFallback("https://other.example.com/answer")
    async with open_door(database_url, redis_url, key_prefix, fallback=fallback) as door:
        door.stream = Unallocated("busy")
        await post(door, door.callback("twilio", "answer", uuid4()), ANSWERED)
        await door.events()
        async with door.database.connection() as conn:
            assert await conn.fetchval("SELECT payload -> 'agent_joined' FROM mailbox_events") is True


async def test_an_overdialled_call_is_held_once_and_then_hears_the_abandon_message(door: Door) -> None:
    """It holds once, for a second; then it hears the policy's message in place of the fallback's."""
    attempt = uuid4()
    door.stream = Unallocated("hold", message="Acme called.", wait_max_s=2.0)
    _, held = await post(door, door.callback("twilio", "answer", attempt), ANSWERED)
    assert b"<Redirect" in held
    again = callback_url(door.public_url, "twilio", "answer", attempt, KEYS, "default", held=1)
    _, told = await post(door, again, ANSWERED)
    assert b"Acme called." in told
    assert b"busy" not in told
    await door.events()
    async with door.database.connection() as conn:
        joined = await conn.fetch(
            "SELECT payload -> 'agent_joined' AS joined FROM mailbox_events ORDER BY seq"
        )
    assert [row["joined"] for row in joined] == [None, False]


# --- accounts that this process does not know yet


async def test_a_webhook_of_an_unknown_account_makes_the_process_read_the_accounts(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    desks: list[AccountService] = []
    refresher = AccountRefresher(lambda: desks[0].refresh(), wait_max_s=60.0)
    async with open_door(database_url, redis_url, key_prefix, refresher=refresher) as door:
        assert door.directory is not None
        vault = Vault.from_secrets([SECRET])
        desks.append(AccountService(door.database, door.directory, vault, KEYS, door.url))
        attempt = uuid4()
        answer = door.callback("twilio", "answer", attempt, "second")
        status = door.callback("twilio", "status", attempt, "second")
        token = NEW["auth_token"]
        assert (await post(door, answer, ANSWERED, token=token))[0] == 403, "there is no such account"
        await store(door, vault, "second", NEW)
        code, body = await post(door, answer, ANSWERED, token=token)
        assert (code, stream_url(body)) == (200, POD)
        assert (await post(door, status, ENDED, token=token))[0] == 204


async def test_a_signature_by_a_new_token_makes_the_process_read_the_accounts(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    doors: list[Door] = []

    async def refresh() -> None:
        directory = doors[0].directory
        assert directory is not None
        directory.replace_stored({("twilio", "second"): CarrierAccount(NEW, KEYS, name="second")})

    old = CarrierAccount({**NEW, "auth_token": "the-old-token"}, KEYS, name="second")
    accounts = {("twilio", "second"): old}
    async with open_door(
        database_url,
        redis_url,
        key_prefix,
        accounts=accounts,
        refresher=AccountRefresher(refresh, wait_max_s=60.0),
    ) as door:
        doors.append(door)
        url = door.callback("twilio", "status", uuid4(), "second")
        assert (await post(door, url, ENDED, token=NEW["auth_token"]))[0] == 204
        assert (await post(door, url, ENDED, token="another"))[0] == 403


async def away() -> None:
    raise StoreUnavailable("Postgres is away")


@pytest.mark.parametrize("kind", ["answer", "status", "inbound"])
async def test_without_postgres_a_signed_url_alone_gets_a_document_and_stores_no_event(
    database_url: str, redis_url: str, key_prefix: str, kind: Any
) -> None:
    async with open_door(
        database_url, redis_url, key_prefix, refresher=AccountRefresher(away, wait_max_s=60.0)
    ) as door:
        attempt = None if kind == "inbound" else uuid4()
        fields = {"answer": ANSWERED, "status": ENDED, "inbound": RINGING}[kind]
        code, body = await post(door, door.callback("twilio", kind, attempt, "unknown"), fields)
        assert await door.events() == []
        assert code == (200 if kind == "answer" else 403)
        if kind == "answer":
            assert stream_url(body) == POD
            assert door.streams == [("CA1", attempt)]


async def test_without_postgres_a_wrong_signature_of_a_known_account_gets_no_document(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with open_door(
        database_url, redis_url, key_prefix, refresher=AccountRefresher(away, wait_max_s=60.0)
    ) as door:
        url = door.callback("twilio", "answer", uuid4())
        assert (await post(door, url, ANSWERED, token="another"))[0] == 403
        assert door.streams == []


# --- the fallback URL


async def test_the_fallback_url_at_another_base_is_verified_and_counted(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    other = "https://other.example.com"
    async with open_door(
        database_url,
        redis_url,
        key_prefix,
        public_base_url="https://calls.example.com",
        fallback_base_url=other,
    ) as door:
        attempt = uuid4()
        url = fallback_of(door.callback("twilio", "answer", attempt), other)
        before = count(metrics.ANSWER_FALLBACKS, carrier="twilio")
        here = url.replace(other, door.url)
        code, body = await post(door, here, ANSWERED, signed_url=url)
        assert (code, stream_url(body)) == (200, POD)
        assert count(metrics.ANSWER_FALLBACKS, carrier="twilio") == before + 1
        assert [of for _, of in door.streams] == [attempt]


async def store(door: Door, vault: Vault, name: str, credentials: dict[str, str]) -> None:
    sealed = vault.seal("twilio", name, credentials)
    new = NewAccount(carrier="twilio", name=name, credentials={})
    async with door.database.transaction() as tx:
        assert await store_accounts.ACCOUNTS.insert(tx, new, id=uuid4(), credentials=sealed)


# --- waiting for an agent


@pytest.mark.parametrize("why", ["hold", "unknown"])
async def test_the_hold_count_in_the_url_ends_the_wait_without_an_engine(
    database_url: str, redis_url: str, key_prefix: str, why: WhyUnallocated
) -> None:
    """How often the call was on hold stands in its URL, signed."""
    async with open_door(database_url, redis_url, key_prefix, hold_max_s=2) as door:
        door.stream = Unallocated(why)
        url, holds = door.callback("twilio", "answer", uuid4()), 0
        while b"<Redirect" in (body := (await post(door, url, ANSWERED))[1]):
            holds += 1
            again = body.decode().partition('<Redirect method="POST">')[2].partition("</Redirect>")[0]
            url = again.partition("#")[0].replace("&amp;", "&")
        assert holds == 2
        assert b"<Say>" in body


async def test_a_call_of_external_agents_gets_the_fallback_url_and_counts_as_joined(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    fallback = AnswerFallback("https://agents.example.com/twiml", "nobody is here")
    async with open_door(database_url, redis_url, key_prefix, fallback=fallback) as door:
        door.stream = Unallocated("elsewhere")
        _, body = await post(door, door.callback("twilio", "answer", uuid4()), ANSWERED)
        assert b"https://agents.example.com/twiml" in body
        assert await door.events() == ["answered"]
        async with door.database.connection() as conn:
            told = await conn.fetchval("SELECT (payload->>'agent_joined')::boolean FROM mailbox_events")
        assert told is True, "the document is the witness"


async def test_a_carrier_that_cannot_hold_gets_the_fallback_at_once_and_it_is_recorded(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    """Exotel's applet requests once: waiting would be a 503 without another request."""
    other = AnswerFallback("wss://other.example.com/agent")
    async with open_door(database_url, redis_url, key_prefix, fallback=other, hold_max_s=60) as door:
        door.stream = Unallocated("hold")
        asked = {"CallSid": "1", "CustomField": signed_attempt(uuid4(), "exotel", KEYS)}
        url = f"{door.here(door.callback('exotel', 'answer', None))}&{urlencode(asked)}"
        password = basic("trunkline", basic_password("exotel", "default", KEYS.keys[0]))
        async with door.http.get(url, headers={"Authorization": password}) as answer:
            assert (answer.status, await answer.json()) == (200, {"url": "wss://other.example.com/agent"})
        await door.written()
        async with door.database.connection() as conn:
            told = await conn.fetchval("SELECT (payload->>'agent_joined')::boolean FROM mailbox_events")
        assert told is True, "the operator's own URL is an agent elsewhere"


# --- a call that was written off, and is answered after all


@pytest.mark.parametrize(
    ("lead", "is_connected"),
    [
        ("status = 'BACKLOG'", True),
        ("status = 'FINISHED', outcome = 'UNKNOWN', finished_at = now()", True),
        ("status = 'FINISHED', outcome = 'ABORTED', finished_at = now()", False),
        ("status = 'FINISHED', outcome = 'BLACKLISTED', finished_at = now()", False),
    ],
)
async def test_a_call_that_reappears_for_a_finished_lead_gets_the_hang_up_document(
    database_url: str, redis_url: str, key_prefix: str, lead: str, *, is_connected: bool
) -> None:
    """Over HTTP, with the answer gate and the reattachment as the platform has them."""
    async with (
        open_gate(database_url) as gate,
        open_door(
            database_url,
            redis_url,
            key_prefix,
            fallback=FALLBACK,
        ) as door,
    ):
        door.finder = gate.connector.find_stream
        dialing = gate.dialing
        attempt = await dialing.kept("+12125550001", await dialing.pod("va-0"), state="in_doubt")
        await dialing.run(
            "UPDATE attempts SET state = 'absent', holds_channel = false, next_check_at = NULL, ended_at = now()"
        )
        await dialing.run(f"UPDATE leads SET {lead}")
        status, body = await post(door, door.callback("twilio", "answer", attempt), ANSWERED)
        assert status == 200
        assert (b"<Stream " in body) is is_connected
        assert (b"<Hangup" in body) is not is_connected
        assert APOLOGY not in body, "it is nobody's call any more, and nothing is said"
        assert await dialing.state_of(attempt) == ("answered" if is_connected else "absent")

"""Pre-checks over a real socket: conditions, retries, bounded waits, and leads that delay no other."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.dispatch.dialing import Dialing, open_dialing
from tests.support.dispatch.stage import Stage, open_stage
from tests.support.waiting import eventually
from trunkline.bus import schedule
from trunkline.dispatch import grants
from trunkline.dispatch.dialer import Dialer
from trunkline.dispatch.grants import reopen
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.prechecks import (
    CONCURRENCY_PER_MERCHANT,
    PENDING_MAX,
    PrecheckPassed,
    Prechecks,
    PrecheckScanner,
    PrecheckVerdict,
    Skipped,
)
from trunkline.http.outgoing import Outgoing
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.leads.precheck_conditions import HttpCheck
from trunkline.leads.windows import TimeSpan, Window
from trunkline.model import Finish, Outcome, Refusal, RefusalReason
from trunkline.store import prechecks as store_prechecks
from trunkline.store.prechecks import PrecheckLead
from trunkline.value import replace


class Tenant:
    """The other side: answers from a list, and the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = [(200, {"ok": True})]
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.slow_for: str | None = None

    async def answer(self, request: web.Request) -> web.Response:
        question = await request.json() if request.method == "POST" else dict(request.query)
        self.asked.append(question)
        self.headers.append(dict(request.headers))
        if self.slow_for in (None, question["lead_id"]):
            await self.may_answer.wait()
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(body, bytes):
            return web.Response(status=status, body=body)
        return web.json_response(body, status=status)


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.fixture
async def tenant() -> Tenant:
    return Tenant()


@pytest.fixture
async def url(tenant: Tenant) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/ask", tenant.answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/ask"))


@pytest.fixture
async def prechecks(dialing: Dialing) -> AsyncIterator[Prechecks]:
    """The other side is on this machine, which is private: allowed for tests alone."""
    outgoing = Outgoing(allow_insecure=True)
    yield Prechecks(dialing.database, outgoing, Policies(fresh_s=0))
    await outgoing.close()


def ended(verdict: object) -> bool:
    return isinstance(verdict, Refusal) and verdict.finish is not None


async def check(dialing: Dialing, url: str, *, merchant: str = "m", **more: object) -> None:
    document = {"url": url, "conditions": [{"path": "body.ok", "value": True}]} | more
    await dialing.policy(CallingPolicy(prechecks=(HttpCheck.model_validate(document),)), subject=merchant)


async def test_a_lead_that_passes_its_pre_check_is_dialled(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    await check(dialing, url, headers={"X-Token": "secret"})
    lead = await dialing.lead("+12125550001")
    grant = dialing.grant(lead)
    (refusal,) = (await dialing.intend(grant)).refused.values()
    assert (refusal.reason, refusal.subject) == (RefusalReason.PRECHECK, "needed")
    assert await prechecks.ask(lead) == PrecheckPassed(lead)
    assert len((await dialing.intend(grant)).committed) == 1
    (question,) = tenant.asked
    assert (question["lead_id"], question["phone"], question["attempt"]) == (str(lead), "+12125550001", 1)
    assert tenant.headers[0]["X-Token"] == "secret"


async def test_fault_15_a_pass_holds_for_a_minute_without_another_request(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    await check(dialing, url)
    lead = await dialing.lead()
    for _ in range(5):
        await prechecks.run_ahead([lead])
    assert len(tenant.asked) == 1
    assert await prechecks.ask(lead) == Skipped(lead, "not_needed")
    await dialing.run("UPDATE prechecks SET passed_until = clock_timestamp() + interval '10 s'")
    assert await prechecks.run_ahead([lead]) == [PrecheckPassed(lead)], "renewed ahead of its end"
    await dialing.run("UPDATE prechecks SET passed_until = clock_timestamp()")
    (refusal,) = (await dialing.intend(dialing.grant(lead))).refused.values()
    assert refusal.reason is RefusalReason.PRECHECK


async def test_a_pass_that_ends_before_the_call_could_be_sent_is_renewed(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    """The intent is committed ahead of the lead's time, and wants a pass that holds until then."""
    await check(dialing, url)
    lead = await dialing.lead()
    assert await prechecks.ask(lead) == PrecheckPassed(lead)
    await dialing.run("UPDATE prechecks SET passed_until = clock_timestamp() + interval '0.9 s'")
    assert await prechecks.ask(lead) == PrecheckPassed(lead)
    assert len(tenant.asked) == 2


async def test_a_pass_does_not_hold_for_changed_pre_checks(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    await check(dialing, url)
    lead = await dialing.lead()
    await prechecks.ask(lead)
    await check(dialing, url, timeout_s=5)
    (refusal,) = (await dialing.intend(dialing.grant(lead))).refused.values()
    assert refusal.reason is RefusalReason.PRECHECK


async def test_without_pre_checks_no_request_is_made(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant
) -> None:
    lead = await dialing.lead()
    assert await prechecks.run_ahead([lead]) == [Skipped(lead, "not_needed")]
    assert await prechecks.ask(uuid4()) is not None
    assert tenant.asked == []


async def test_a_lead_that_fails_its_pre_check_ends(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    tenant.answers = [(200, {"ok": False})]
    await check(dialing, url)
    lead = await dialing.lead()
    verdict = await prechecks.ask(lead)
    assert isinstance(verdict, Refusal)
    assert verdict.finish == Finish(Outcome.PRECHECK_FAILED, "STATUS_200")
    found = await dialing.lead_row(lead)
    assert (found["status"], found["outcome"]) == ("FINISHED", "PRECHECK_FAILED")
    assert await dialing.value("SELECT reason FROM decisions") == "precheck"


async def test_a_lead_deferred_by_its_pre_check_too_often_ends(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    tenant.answers = [(200, {"ok": False})]
    await check(dialing, url, otherwise="defer", defer_s=600, defer_max=2)
    lead = await dialing.lead()
    for turn in (1, 2):
        verdict = await prechecks.ask(lead)
        assert isinstance(verdict, Refusal)
        assert verdict.moved is not None
        assert verdict.moved.version == turn + 1
        wait = verdict.moved.due_at - await dialing.now()
        assert timedelta(seconds=590) < wait <= timedelta(seconds=600)
    verdict = await prechecks.ask(lead)
    assert isinstance(verdict, Refusal)
    assert verdict.finish is not None
    row = await dialing.row("SELECT * FROM decisions")
    assert (row["reason"], row["times"]) == ("precheck", 3)


@pytest.mark.parametrize(
    ("answers", "asked", "passes"),
    [
        ([(500, {}), (503, {}), (200, {"ok": True})], 3, True),
        ([(500, {}), (500, {}), (500, {})], 3, False),
        ([(429, {}), (200, {"ok": True})], 2, True),
        ([(404, {"ok": True})], 1, False),
        ([(200, b"not json")], 1, False),
        ([(200, b'{"ok": true, "pad": "' + b"x" * 70_000 + b'"}')], 1, False),
        ([(302, {"ok": True})], 1, False),
    ],
)
async def test_a_failing_pre_check_is_retried_and_an_answer_is_not(
    dialing: Dialing,
    prechecks: Prechecks,
    tenant: Tenant,
    url: str,
    answers: list[tuple[int, Any]],
    asked: int,
    *,
    passes: bool,
) -> None:
    tenant.answers = answers
    await check(dialing, url)
    lead = await dialing.lead()
    verdict = await prechecks.ask(lead)
    assert isinstance(verdict, PrecheckPassed if passes else Refusal)
    assert passes or ended(verdict)
    assert len(tenant.asked) == asked


@pytest.mark.parametrize(("on_failure", "verdict"), [("proceed", PrecheckPassed), ("skip", Refusal)])
async def test_an_unreachable_pre_check_proceeds_or_ends_by_the_policy(
    dialing: Dialing, prechecks: Prechecks, on_failure: str, verdict: type
) -> None:
    await check(dialing, "http://127.0.0.1:1/ask", on_failure=on_failure, retries=1)
    found = await prechecks.ask(await dialing.lead())
    assert isinstance(found, verdict)
    assert on_failure == "proceed" or ended(found)


async def test_a_pre_check_never_connects_to_a_private_address(
    dialing: Dialing, tenant: Tenant, url: str
) -> None:
    outgoing = Outgoing()
    strict = Prechecks(dialing.database, outgoing, Policies(fresh_s=0))
    await check(dialing, url.replace("http:", "https:"), on_failure="skip")
    lead = await dialing.lead()
    verdict = await strict.ask(lead)
    assert isinstance(verdict, Refusal)
    assert verdict.finish == Finish(Outcome.PRECHECK_FAILED, "ADDRESS_REFUSED")
    await check(dialing, url.replace("http://127.0.0.1", "https://localhost"), on_failure="skip")
    named = await dialing.lead()
    verdict = await strict.ask(named)
    assert isinstance(verdict, Refusal)
    assert verdict.finish == Finish(Outcome.PRECHECK_FAILED, "ADDRESS_REFUSED")
    assert tenant.asked == []
    await outgoing.close()


async def test_a_get_pre_check_carries_the_lead_in_its_query(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    await check(dialing, f"{url}?key=a", method="GET")
    lead = await dialing.lead("+12125550001")
    assert await prechecks.ask(lead) == PrecheckPassed(lead)
    assert tenant.asked[0] | {"key": "a", "phone": "+12125550001"} == tenant.asked[0]


async def test_a_pre_checks_answer_does_not_change_a_lead_edited_meanwhile(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    tenant.answers = [(200, {"ok": False})]
    tenant.may_answer.clear()
    await check(dialing, url)
    lead = await dialing.lead()
    asking = asyncio.create_task(prechecks.ask(lead))
    await eventually(lambda: len(tenant.asked) == 1)
    await dialing.run("UPDATE leads SET version = 2")
    tenant.may_answer.set()
    assert await asking == Skipped(lead, "changed")
    assert (await dialing.lead_row(lead))["status"] == "BACKLOG"


async def test_a_lead_is_pre_checked_by_one_process_at_a_time(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    tenant.may_answer.clear()
    await check(dialing, url)
    lead = await dialing.lead()
    asking = asyncio.create_task(prechecks.ask(lead))
    await eventually(lambda: len(tenant.asked) == 1)
    outgoing = Outgoing(allow_insecure=True)
    elsewhere = Prechecks(dialing.database, outgoing, Policies(fresh_s=0))
    assert await elsewhere.run_ahead([lead]) == [Skipped(lead, "being_asked")]
    tenant.may_answer.set()
    assert await asking == PrecheckPassed(lead)
    assert len(tenant.asked) == 1
    await outgoing.close()


@pytest.mark.parametrize("welcome", [True, False])
async def test_a_process_that_read_the_lead_before_the_answer_does_not_request_again(
    dialing: Dialing,
    prechecks: Prechecks,
    tenant: Tenant,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    welcome: bool,
) -> None:
    """It read a waiting lead; before it sends its request, another process has sent one and written the answer."""
    tenant.answers = [(200, {"ok": welcome})]
    await check(dialing, url)
    lead = await dialing.lead()
    outgoing = Outgoing(allow_insecure=True)
    elsewhere = Prechecks(dialing.database, outgoing, Policies(fresh_s=0))
    look = store_prechecks.waiting

    async def late(*args: Any, **more: Any) -> list[PrecheckLead]:
        found = await look(*args, **more)
        monkeypatch.setattr(store_prechecks, "waiting", look)
        await elsewhere.ask(lead)
        return found

    monkeypatch.setattr(store_prechecks, "waiting", late)
    assert await prechecks.ask(lead) == Skipped(lead, "being_asked")
    assert len(tenant.asked) == 1
    await outgoing.close()


async def test_a_dead_processs_claim_on_a_pre_check_expires(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    await check(dialing, url)
    lead = await dialing.lead()
    await dialing.run(
        "INSERT INTO prechecks (lead_id, reseller_id, merchant_id, checks_hash, claimed_until)"
        " SELECT id, reseller_id, merchant_id, '', clock_timestamp() FROM leads WHERE id = $1",
        lead,
    )
    assert await prechecks.ask(lead) == PrecheckPassed(lead)


async def test_race_20_a_slow_pre_check_delays_no_other_lead(
    dialing: Dialing, prechecks: Prechecks, tenant: Tenant, url: str
) -> None:
    tenant.may_answer.clear()
    await check(dialing, url)
    slow, *others = await dialing.leads(4)
    tenant.slow_for = str(slow)
    asking = asyncio.create_task(prechecks.run_ahead([slow, *others]))

    called: set[UUID] = set()

    async def others_are_called() -> bool:
        left = {n: lead for n, lead in enumerate((slow, *others), 1) if lead not in called}
        intents = await dialing.intend(*[dialing.grant(lead, n) for n, lead in left.items()])
        called.update(intent.lead_id for intent in intents.committed)
        return called == set(others)

    await eventually(others_are_called)
    assert not asking.done()
    tenant.may_answer.set()
    assert PrecheckPassed(slow) in await asking


# The dialer, and the walk ahead of it


@pytest.fixture
async def stage(database_url: str, redis_url: str, key_prefix: str) -> AsyncIterator[Stage]:
    async with open_stage(database_url, redis_url, key_prefix) as stage:
        yield stage


@pytest.fixture
async def prechecks_of(stage: Stage) -> AsyncIterator[Prechecks]:
    outgoing = Outgoing(allow_insecure=True)
    yield Prechecks(stage.database, outgoing, Policies(fresh_s=0))
    await outgoing.close()


@pytest.fixture
async def asking(
    stage: Stage, url: str, prechecks_of: Prechecks, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Dialer, PrecheckScanner]]:
    """A dialer that asks when it must, and the walk that asks before. Its grants do not age: machines may be busy."""
    ageless = schedule._grant
    monkeypatch.setattr(schedule, "_grant", lambda fields: replace(ageless(fields), granted_ms=None))
    monkeypatch.setattr(grants, "PRECHECK_WAIT_MAX_S", 60.0)
    walk = PrecheckScanner(stage.database, stage.bus, stage.controls, Policies(fresh_s=0), prechecks_of)
    await check(stage.dialing, url)
    yield stage.another_dialer(precheck=prechecks_of.ask), walk
    await walk.drain()


Asking = tuple[Dialer, PrecheckScanner]


async def test_race_2_12_a_lead_pre_checked_ahead_is_dialled_at_its_first_turn(
    stage: Stage, asking: Asking, tenant: Tenant
) -> None:
    dialer, walk = asking
    lead = await stage.dialing.lead()
    other = await stage.dialing.lead(merchant="n")
    assert await walk.run_once() == 1, "only those whose policy has pre-checks"
    await walk.drain()
    assert await stage.dial(dialer) == 2
    assert [question["lead_id"] for question in tenant.asked] == [str(lead)]
    assert await stage.dialing.value("SELECT count(*) FROM decisions") == 0
    assert {(await stage.attempt(each))["state"] for each in (lead, other)} == {"accepted"}


async def test_race_2_12_without_a_pass_a_lead_holds_its_channel_during_the_pre_check(
    stage: Stage, asking: Asking, tenant: Tenant
) -> None:
    dialer, _ = asking
    tenant.may_answer.clear()
    lead = await stage.dialing.lead()
    await stage.loader.run_once()
    assert await dialer.run_once() == 0
    await eventually(lambda: len(tenant.asked) == 1)
    (kept,) = await stage.held()
    tenant.may_answer.set()
    await dialer.drain()
    assert (await stage.attempt(lead))["id"] == kept, "under the same grant"
    assert len(tenant.asked) == 1


async def test_race_2_12_a_slow_pre_check_releases_the_channel_and_keeps_its_pass(
    stage: Stage, asking: Asking, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "PRECHECK_WAIT_MAX_S", 0.0)
    dialer, _ = asking
    tenant.may_answer.clear()
    lead = await stage.dialing.lead()
    await stage.loader.run_once()
    await dialer.run_once()
    await eventually(lambda: len(tenant.asked) == 1)

    async def nobody_holds() -> bool:
        return not await stage.held()

    await eventually(nobody_holds)
    tenant.may_answer.set()
    await dialer.drain()

    async def is_called() -> bool:
        await stage.dial(dialer)
        return len(stage.carrier.orders) == 1

    await eventually(is_called)
    assert len(tenant.asked) == 1, "the late pass was kept"
    assert (await stage.attempt(lead))["state"] == "accepted"


async def test_race_20_a_merchant_with_a_silent_pre_check_delays_no_other_merchant(
    stage: Stage, asking: Asking, tenant: Tenant, prechecks_of: Prechecks
) -> None:
    tenant.may_answer.clear()
    dialer = stage.another_dialer(precheck=prechecks_of.ask, in_flight_max=4)
    silent = [await stage.dialing.lead() for _ in range(20)]
    others = [await stage.dialing.lead(merchant="n") for _ in range(8)]
    await stage.loader.run_once()

    async def others_are_called() -> bool:
        await dialer.run_once()
        return len(stage.carrier.orders) == len(others)

    async with asyncio.timeout(30):
        await eventually(others_are_called)
    await eventually(lambda: len(tenant.asked) == CONCURRENCY_PER_MERCHANT)
    claimed = await stage.dialing.value("SELECT count(*) FROM prechecks WHERE claimed_until > now()")
    assert claimed == CONCURRENCY_PER_MERCHANT, "who waits for room has claimed nothing"
    calls = {attempt["id"] for lead in others for attempt in await stage.attempts(lead)}

    async def beyond_a_crowd_no_channel_waits() -> bool:
        return len(await stage.held() - calls) <= PENDING_MAX

    await eventually(beyond_a_crowd_no_channel_waits)

    async def its_flow_is_parked() -> bool:
        """Not tried for each of its leads. It is let out once a second, and comes back with its first refusal."""
        await dialer.run_once()
        return list(await stage.bus.client.zrange(f"{stage.bus.projection}parked", 0, -1)) == ["p/r/m/"]

    await eventually(its_flow_is_parked)
    tenant.may_answer.set()
    await dialer.drain()
    assert {question["lead_id"] for question in tenant.asked} <= set(map(str, silent))


async def test_a_slow_merchant_does_not_use_up_the_requests_to_a_shared_host(
    stage: Stage, tenant: Tenant, url: str, prechecks_of: Prechecks
) -> None:
    await check(stage.dialing, url)
    await check(stage.dialing, url, merchant="n")
    tenant.may_answer.clear()
    slow = [await stage.dialing.lead() for _ in range(10)]
    tenant.slow_for = None
    waiting = asyncio.create_task(prechecks_of.run_ahead(slow))
    await eventually(lambda: len(tenant.asked) == CONCURRENCY_PER_MERCHANT)
    other = await stage.dialing.lead(merchant="n")
    tenant.slow_for = "nobody"
    assert await prechecks_of.ask(other) == PrecheckPassed(other)
    async with asyncio.timeout(10):
        # It waits for room already, so it does not wait a second time.
        assert await prechecks_of.ask(slow[-1]) == Skipped(slow[-1], "being_asked")
    assert not waiting.done()
    tenant.may_answer.set()
    assert await waiting == [PrecheckPassed(lead) for lead in slow], (
        "and those who waited are asked about after all"
    )


async def test_a_pre_check_that_raises_releases_the_channel_at_once(stage: Stage, asking: Asking) -> None:
    async def broken(_: UUID) -> PrecheckVerdict:
        raise RuntimeError("no")

    lead = await stage.dialing.lead()
    await stage.dial(stage.another_dialer(precheck=broken))
    assert await stage.held() == set()
    assert (await stage.known_leads())[str(lead)].startswith("1|s|"), "and the lead is looked at again"


async def test_a_lead_refused_by_its_pre_check_releases_its_channel(
    stage: Stage, asking: Asking, tenant: Tenant, url: str
) -> None:
    dialer, _ = asking
    tenant.answers = [(200, {"ok": False})]
    ended = await stage.dialing.lead()
    await stage.dial(dialer)
    assert (await stage.lead(ended))["outcome"] == "PRECHECK_FAILED"
    await check(stage.dialing, url, otherwise="defer", defer_s=600)
    deferred = await stage.dialing.lead()
    await stage.dial(dialer)
    assert (await stage.lead(deferred))["due_at"] > await stage.dialing.now()
    assert await stage.held() == set()
    assert list(await stage.known_leads()) == [str(deferred)], "and Valkey knows both facts"
    assert stage.carrier.orders == []


async def test_no_pre_check_is_made_for_stopped_leads(stage: Stage, asking: Asking, tenant: Tenant) -> None:
    _, walk = asking
    await stage.dialing.lead()
    stage.controls.close("for the test")
    assert await walk.run_once() == 0
    assert tenant.asked == []


async def test_a_deferral_found_ahead_moves_the_lead_in_valkey(
    stage: Stage, asking: Asking, tenant: Tenant, url: str
) -> None:
    dialer, walk = asking
    tenant.answers = [(200, {"ok": False})]
    await check(stage.dialing, url, otherwise="defer", defer_s=600)
    lead = await stage.dialing.lead()
    await stage.loader.run_once()
    await walk.run_once()
    await walk.drain()
    assert await dialer.run_once() == 0
    assert (await stage.known_leads())[str(lead)].startswith("2|s|")


# Leads that the match set aside because their window had closed


async def test_a_lead_whose_window_closed_before_its_turn_gets_its_next_opening(dialing: Dialing) -> None:
    now = await dialing.now()
    closed = Window(spans=(TimeSpan(start="00:00", end="24:00"),), closed_on=(now.date(),))
    await dialing.policy(CallingPolicy(windows=(closed,), timezone="UTC"))
    stale, other = await dialing.leads(2)
    (entry,) = await reopen(dialing.database, Policies(fresh_s=0), [(stale, 1), (other, 9)])
    midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    assert (entry.lead_id, entry.version, entry.due_at) == (stale, 2, midnight)
    assert await dialing.value("SELECT until FROM decisions WHERE lead_id = $1", stale) == midnight
    assert (await dialing.lead_row(other))["version"] == 1


async def test_a_lead_whose_window_will_never_open_again_ends(dialing: Dialing) -> None:
    windows = tuple(
        Window(spans=(TimeSpan(start=start, end=end),))
        for start, end in [("09:00", "10:00"), ("11:00", "12:00")]
    )
    await dialing.policy(CallingPolicy(windows=windows))
    lead = await dialing.lead()
    assert await reopen(dialing.database, Policies(fresh_s=0), [(lead, 1)]) == []
    assert (await dialing.lead_row(lead))["outcome"] == "NO_CONFIG"

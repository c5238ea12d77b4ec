"""Why is a lead not called? The first sentence names what really refuses it, who set that, and when it ends."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.support.dispatch.dialing import AGENTS_OURS, ME, Dialing, open_dialing
from trunkline.bus import channels, epoch
from trunkline.bus import connection as bus_connection
from trunkline.bus.channels import Configuration
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.clock import SystemClock
from trunkline.control.controls import Controls
from trunkline.dispatch.gates import DOUBTS_MIN
from trunkline.dispatch.policy_cache import Policies
from trunkline.dispatch.rollout import DialStops
from trunkline.dispatch.why import DispatchView, why
from trunkline.dispatch.why_words import gate_of
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.model import Refusal, RefusalReason
from trunkline.schema.leads import Why
from trunkline.store import controls, cooldowns
from trunkline.store.agents import SlotRule
from trunkline.store.controls import Level, NewStop, Scope
from trunkline.store.cooldowns import CarrierRefused, Subject
from trunkline.store.tenants import PLATFORM, Tenant

SLOTS = SlotRule(callers_of=lambda tier: 0)
CAMPAIGN = uuid4()
PHONE = "+12125550777"


@pytest.fixture
async def dialing(database_url: str) -> AsyncIterator[Dialing]:
    async with open_dialing(database_url) as dialing:
        yield dialing


@pytest.fixture
async def bus(redis_url: str, key_prefix: str) -> AsyncIterator[Bus]:
    bus = bus_connection.connect(redis_url, Keys(prefix=key_prefix))
    yield bus
    await bus.close()


async def ask(dialing: Dialing, lead: UUID, tenant: Tenant = PLATFORM, **view: Any) -> Why:
    async with dialing.database.connection() as conn:
        found = await why(conn, Policies(fresh_s=0), tenant, lead, DispatchView(**view))
    assert found is not None
    return found


async def stop(dialing: Dialing, scope: Scope, subject: str, **more: Any) -> None:
    level = more.pop("level", Level.PLATFORM)
    new = NewStop(scope, subject, level, more.pop("reason", "a drill"), "ada", PLATFORM, 0, **more)
    async with dialing.database.transaction() as tx:
        await controls.stop(tx, new)


# The property: whatever an intent refuses for, alone or beside something else, is what `why` names.


@dataclass
class Scene:
    """One lead, and everything around it that could refuse it."""

    dialing: Dialing
    policy: dict[str, Any] = field(default_factory=dict)
    campaign_policy: dict[str, Any] = field(default_factory=dict)
    lead: dict[str, Any] = field(default_factory=dict)
    view: dict[str, Any] = field(default_factory=dict)
    rules: dict[str, Any] = field(default_factory=dict)
    later: list[Callable[[UUID], Awaitable[None]]] = field(default_factory=list)

    async def run(self, sql: str, *args: object) -> None:
        await self.dialing.run(sql, *args)

    async def called(self, state: str = "ended", **more: Any) -> None:
        await self.dialing.attempt(PHONE, state=state, campaign_id=CAMPAIGN, **more)


Obstacle = Callable[[Scene], Awaitable[None]]


async def kill_switch(scene: Scene) -> None:
    await stop(scene.dialing, Scope.KILL_SWITCH, "")


async def stopped_merchant(scene: Scene) -> None:
    await stop(scene.dialing, Scope.MERCHANT, "m")


async def stopped_number(scene: Scene) -> None:
    await stop(scene.dialing, Scope.NUMBER, str(scene.dialing.number))


async def left_out(scene: Scene) -> None:
    scene.view["includes"] = lambda reseller, merchant: False


async def number_draining(scene: Scene) -> None:
    await scene.run("UPDATE numbers SET status = 'draining'")


async def attempts_used_up(scene: Scene) -> None:
    async def use(lead: UUID) -> None:
        await scene.run("UPDATE leads SET attempt_count = max_attempts WHERE id = $1", lead)

    scene.later.append(use)


async def expired(scene: Scene) -> None:
    async def expire(lead: UUID) -> None:
        await scene.run("UPDATE leads SET expires_at = now() WHERE id = $1", lead)

    scene.later.append(expire)


async def on_a_list(scene: Scene) -> None:
    await scene.run(
        "INSERT INTO do_not_call (id, phone, reason, created_by) VALUES ($1, $2, 'asked', 'ada')",
        uuid4(),
        PHONE,
    )


async def other_destination(scene: Scene) -> None:
    scene.policy["destinations"] = {"allow": ["+91"]}


async def closed_window(scene: Scene) -> None:
    now = datetime.now(UTC) + timedelta(hours=3)
    span = {"start": f"{now:%H}:00", "end": f"{now + timedelta(hours=1):%H}:00"}
    if span["end"] == "00:00":
        span["end"] = "24:00"
    scene.policy |= {"windows": [{"spans": [span]}], "timezone": "UTC"}


async def precheck(scene: Scene) -> None:
    scene.policy["prechecks"] = [{"url": "https://crm.example.com/check"}]


async def person_limit(scene: Scene) -> None:
    scene.policy["person_limits"] = [{"max_calls": 1, "window_h": 24, "then": "defer"}]
    await scene.called(ago_s=60)


async def attempts_of_the_day(scene: Scene) -> None:
    scene.policy["attempts_per_day"] = 0


async def money_of_the_day(scene: Scene) -> None:
    scene.policy |= {"spend_per_day_micros": 1, "price": {"per_call_micros": 1000}}


async def calls_at_once(scene: Scene) -> None:
    await scene.run("UPDATE merchants SET max_concurrent = 1 WHERE id = 'm'")
    await scene.dialing.attempt("+12125550888", state="answered")


async def pace_of_the_number(scene: Scene) -> None:
    await scene.run("UPDATE numbers SET starts_per_s = 0.01")
    await scene.run(
        "INSERT INTO paces (kind, subject, next_start_at) VALUES ('number', $1, now() + interval '1 minute')",
        str(scene.dialing.number),
    )


async def pace_of_the_account(scene: Scene) -> None:
    scene.view["account_pace"] = scene.rules["account_pace"] = lambda carrier, account: 0.01
    await scene.run(
        "INSERT INTO paces (kind, subject, next_start_at)"
        " VALUES ('account', 'twilio/default', now() + interval '1 minute') ON CONFLICT DO NOTHING"
    )


async def cooling_account(scene: Scene) -> None:
    await cool(scene, Subject("account", "twilio/default"), "20003", "wrong credentials")


async def cooling_number(scene: Scene) -> None:
    await cool(scene, Subject("number", str(scene.dialing.number)), "21210", "our number is not verified")


async def cooling_country(scene: Scene) -> None:
    await cool(scene, Subject("country", "twilio/default/US"), "21215", "no permission for this country")


async def carrier_out_of_reach(scene: Scene) -> None:
    await cool(scene, Subject("process", f"{ME}:twilio/default"), "not_connected", "the name is not known")


async def cool(scene: Scene, subject: Subject, code: str, because: str) -> None:
    async with scene.dialing.database.connection() as conn:
        refused = CarrierRefused(subject, ("twilio", "default"), code, because)
        await cooldowns.begin(conn, [refused], first_wait_s=60)


async def account_in_doubt(scene: Scene) -> None:
    """More calls whose fate is not known than the account may have: one in five seconds."""
    for n in range(DOUBTS_MIN + 1):
        await scene.dialing.attempt(f"+1212555066{n}", merchant="n", state="in_doubt")
    await scene.run(
        "INSERT INTO paces (kind, subject, next_start_at)"
        " VALUES ('account', 'twilio/default', now() + interval '1 minute') ON CONFLICT DO NOTHING"
    )


async def pace_of_the_campaign(scene: Scene) -> None:
    scene.campaign_policy["starts_per_s"] = 0.01
    await scene.run(
        "INSERT INTO paces (kind, subject, next_start_at) VALUES ('campaign', $1, now() + interval '1 minute')",
        f"m/{CAMPAIGN}",
    )


async def calls_of_the_campaign_at_once(scene: Scene) -> None:
    scene.campaign_policy["max_concurrent"] = 1
    await scene.dialing.attempt("+12125550889", state="answered", campaign_id=CAMPAIGN)


async def recent_contact(scene: Scene) -> None:
    scene.policy["recent_contact"] = {"cooldown_h": 24}
    await scene.called(ago_s=60, answered_at=await scene.dialing.now())


async def unreadable_policy(scene: Scene) -> None:
    await scene.run(
        "INSERT INTO policies (scope, subject, policy, updated_by)"
        """ VALUES ('reseller', 'r', '{"windows": "?"}', 'test')"""
    )


async def due_before_the_cutover(scene: Scene) -> None:
    await scene.run("INSERT INTO cutovers (merchant_id, since) VALUES ('m', now() + interval '1 minute')")


async def too_many_abandoned(scene: Scene) -> None:
    """Calls may ring without an agent, but none could be answered."""
    scene.policy["abandon_max"] = 0.01
    await no_agent(scene)


async def no_agent(scene: Scene) -> None:
    scene.view |= {"agents": AGENTS_OURS, "slots": SLOTS}
    scene.rules["agents"] = AGENTS_OURS


async def braked(scene: Scene) -> None:
    await scene.run(
        "INSERT INTO no_agent_brakes (merchant_id, stops_until) VALUES ('m', now() + interval '5 minutes')"
    )


async def being_called(scene: Scene) -> None:
    e164 = await scene.dialing.value("SELECT e164 FROM numbers WHERE id = $1", scene.dialing.number)
    await scene.called("ringing", from_phone=e164, merchant="n")


OBSTACLES: dict[str, Obstacle] = {
    each.__name__: each
    for each in (
        kill_switch,
        stopped_merchant,
        stopped_number,
        left_out,
        number_draining,
        attempts_used_up,
        expired,
        on_a_list,
        other_destination,
        closed_window,
        precheck,
        person_limit,
        attempts_of_the_day,
        money_of_the_day,
        calls_at_once,
        pace_of_the_number,
        pace_of_the_account,
        cooling_account,
        cooling_number,
        cooling_country,
        carrier_out_of_reach,
        account_in_doubt,
        pace_of_the_campaign,
        calls_of_the_campaign_at_once,
        recent_contact,
        unreadable_policy,
        due_before_the_cutover,
        too_many_abandoned,
        no_agent,
        braked,
        being_called,
    )
}
_CLEAN = """
DELETE FROM allocations; DELETE FROM attempts; DELETE FROM decisions; DELETE FROM leads; DELETE FROM controls;
DELETE FROM do_not_call; DELETE FROM policies; DELETE FROM paces; DELETE FROM merchant_days;
DELETE FROM no_agent_brakes; DELETE FROM cooldowns; DELETE FROM cutovers;
UPDATE merchants SET max_concurrent = NULL; UPDATE numbers SET status = 'active', starts_per_s = NULL;
"""
_BEFORE_A_GRANT = {
    "kill_switch": "control",
    "stopped_merchant": "control",
    "stopped_number": "number",
    "left_out": "event_dispatch",
    "number_draining": "number",
    "due_before_the_cutover": "event_dispatch",
}


async def set_up(dialing: Dialing, names: tuple[str, ...]) -> tuple[Scene, UUID]:
    """A lead amid these obstacles."""
    await dialing.run(_CLEAN)
    scene = Scene(dialing)
    for name in names:
        await OBSTACLES[name](scene)
    if scene.policy:
        await dialing.policy(CallingPolicy.model_validate(scene.policy))
    if scene.campaign_policy:
        policy = CallingPolicy.model_validate(scene.campaign_policy)
        await dialing.policy(policy, "campaign", f"m/{CAMPAIGN}")
    lead = await dialing.lead(PHONE, campaign_id=CAMPAIGN)
    for change in scene.later:
        await change(lead)
    return scene, lead


async def intended(scene: Scene, lead: UUID, *, is_left_out: bool) -> Refusal:
    """What an intent says of it."""
    view = Controls(SystemClock())
    async with scene.dialing.database.connection() as conn:
        view.read(await scene.dialing.now(), await controls.in_force(conn))
    stops = DialStops(view)

    def stopped(*target: Any) -> str | None:
        return stops(*target) or ("event_dispatch" if is_left_out else None)

    intents = await scene.dialing.intend(scene.dialing.grant(lead), stopped=stopped, **scene.rules)
    (refusal,) = intents.refused.values()
    return refusal


async def refused(dialing: Dialing, names: tuple[str, ...]) -> tuple[Refusal, Why]:
    """What an intent says of a lead amid these obstacles, and what `why` says of it then."""
    scene, lead = await set_up(dialing, names)
    refusal = await intended(scene, lead, is_left_out="left_out" in names)
    return refusal, await ask(dialing, lead, **scene.view)


def names_it(refusal: Refusal, found: Why, obstacles: tuple[str, ...]) -> bool:
    gate = gate_of(refusal.reason, refusal.subject)
    if found.status == "FINISHED":
        return found.answer.startswith("It has ended as ")
    if found.refused_by in {_BEFORE_A_GRANT[name] for name in obstacles if name in _BEFORE_A_GRANT}:
        return True
    if found.refused_by == "due":
        return f"deferred by the gate {gate} " in found.answer
    return found.refused_by == gate


@pytest.mark.parametrize("first", OBSTACLES)
async def test_why_names_what_the_intent_refused_for(dialing: Dialing, first: str) -> None:
    """Each obstacle alone, and beside each other one."""
    others = [name for name in OBSTACLES if name > first]
    for names in [(first,), *((first, other) for other in others)]:
        refusal, found = await refused(dialing, names)
        assert not found.answer.startswith("Nothing"), names
        assert names_it(refusal, found, names), (names, refusal.reason, found.refused_by, found.answer)


# Whether one more call may ring without an agent is worked out under a lock, by the intent alone.
_KNOWN_TO_INTENTS = {"too_many_abandoned"}


@pytest.mark.parametrize("name", OBSTACLES)
async def test_why_names_an_obstacle_before_any_intent(dialing: Dialing, name: str) -> None:
    """The match may know of it, so nothing is granted and no decision is written."""
    scene, lead = await set_up(dialing, (name,))
    found = await ask(dialing, lead, **scene.view)
    assert found.decisions == []
    if name in _KNOWN_TO_INTENTS:
        assert "`abandon_max` allows some calls" in str(found.checks)
        return
    assert found.refused_by is not None, found.answer
    refusal = await intended(scene, lead, is_left_out=name == "left_out")
    said = {gate_of(refusal.reason, refusal.subject), _BEFORE_A_GRANT.get(name)}
    assert found.refused_by in said, (refusal.reason, found.answer)


@pytest.mark.parametrize(
    ("name", "reason", "subject"),
    [
        ("cooling_country", RefusalReason.COOLDOWN, "country"),
        ("carrier_out_of_reach", RefusalReason.COOLDOWN, "process"),
        ("account_in_doubt", RefusalReason.PACE, "account"),
        ("pace_of_the_campaign", RefusalReason.PACE, "campaign"),
        ("calls_of_the_campaign_at_once", RefusalReason.LIMIT, "campaign_concurrency"),
        ("recent_contact", RefusalReason.LIMIT, "recent_contact"),
        ("unreadable_policy", RefusalReason.PAUSED, "policy_unreadable"),
        ("due_before_the_cutover", RefusalReason.PAUSED, "event_dispatch"),
        ("too_many_abandoned", RefusalReason.AGENTS, "abandon_max"),
    ],
)
async def test_each_obstacle_of_these_tests_is_refused_for_its_reason(
    dialing: Dialing, name: str, reason: RefusalReason, subject: str
) -> None:
    refusal = await intended(*await set_up(dialing, (name,)), is_left_out=False)
    assert (refusal.reason, refusal.subject) == (reason, subject)


# Who set it, and when it ends


async def test_why_shows_who_set_a_stop_and_when_it_ends(dialing: Dialing) -> None:
    ends_at = datetime(2031, 5, 1, 9, 30, tzinfo=UTC)
    await stop(dialing, Scope.MERCHANT, "m", ends_at=ends_at)
    lead = await dialing.lead()
    found = await ask(dialing, lead)
    assert found.answer == "Calls are stopped: merchant: a drill, set by ada, until 2031-05-01 09:30:00 UTC."
    assert found.next_at == ends_at
    asked_by_tenant = await ask(dialing, lead, Tenant("r", "m"))
    assert asked_by_tenant.answer == (
        "Calls are stopped: merchant, set by the platform, until 2031-05-01 09:30:00 UTC."
    )


async def test_why_names_the_limit_that_deferred_a_lead_and_its_end(dialing: Dialing) -> None:
    refusal, found = await refused(dialing, ("person_limit",))
    assert (refusal.reason, found.refused_by) == (RefusalReason.LIMIT, "due")
    assert found.answer.startswith(
        "It is not due yet: deferred by the gate limit (person limits, refused once), until "
    )


async def test_why_names_whose_policy_sets_a_limit(dialing: Dialing) -> None:
    _, found = await refused(dialing, ("attempts_of_the_day",))
    assert found.answer.startswith(
        "A limit has been reached: attempts per day, set by the merchant's policy (test), until "
    )


async def test_why_names_what_sets_a_pace(dialing: Dialing) -> None:
    _, found = await refused(dialing, ("pace_of_the_account",))
    assert "the pace of the carrier account, set by the account's `starts_per_s`" in found.answer


async def test_why_shows_a_cooldowns_cause_and_next_probe(dialing: Dialing) -> None:
    _, found = await refused(dialing, ("cooling_account",))
    assert found.answer.startswith(
        "The carrier refuses calls: the account cools down, and is tried with one call at a time: twilio/default"
        " refused with 20003 (wrong credentials), since "
    )
    assert found.next_at is not None
    asked_by_tenant = await ask(dialing, found.lead_id, Tenant("r", "m"))
    assert (asked_by_tenant.refused_by, "20003" in asked_by_tenant.answer) == ("cooldown", False)


async def test_why_names_no_cooldown_while_another_account_takes_calls(dialing: Dialing) -> None:
    await cooling_account(Scene(dialing))
    lead = await dialing.lead()
    assert (await ask(dialing, lead)).refused_by == "cooldown"
    await dialing.add_number(account="healthy")
    assert (await ask(dialing, lead)).refused_by is None


async def test_why_names_who_put_the_phone_on_a_do_not_call_list(dialing: Dialing) -> None:
    await on_a_list(Scene(dialing))
    found = await ask(dialing, await dialing.lead(PHONE))
    assert found.answer == "The person must not be called: on the list of the platform (asked), set by ada."


async def test_why_names_the_cutover_for_a_lead_due_before_it(dialing: Dialing) -> None:
    words = (
        "This platform does not call it: it was due before event_dispatch was turned on for its merchant, so another"
        " system has called it; it ends as ABORTED."
    )
    _, lead = await set_up(dialing, ("due_before_the_cutover",))
    assert (await ask(dialing, lead)).answer == words
    assert (await refused(dialing, ("due_before_the_cutover",)))[1].answer == words
    await dialing.run("UPDATE cutovers SET since = now() - interval '1 hour'")
    assert (await ask(dialing, await dialing.lead())).refused_by is None, "it came after it"


async def test_why_names_an_unreadable_policy_before_and_after_an_intent(
    dialing: Dialing,
) -> None:
    scene, lead = await set_up(dialing, ("unreadable_policy",))
    words = "Its calling policy allows no calls: its calling policy cannot be read."
    assert (await ask(dialing, lead)).answer == words
    await intended(scene, lead, is_left_out=False)
    assert (await ask(dialing, lead)).answer == words


async def test_why_names_a_person_being_called_unless_another_number_is_free(dialing: Dialing) -> None:
    _, lead = await set_up(dialing, ("being_called",))
    found = await ask(dialing, lead)
    assert (found.refused_by, found.answer) == ("person", "The person is being called already.")
    await dialing.add_number()
    assert (await ask(dialing, lead)).refused_by is None


# What no intent sees, because nothing is granted


async def test_why_tells_a_pool_without_numbers_from_one_without_free_channels(dialing: Dialing) -> None:
    lead = await dialing.lead()
    await dialing.run("UPDATE numbers SET max_channels = 1")
    await dialing.attempt("+12125550001", state="answered")
    found = await ask(dialing, lead)
    assert (found.refused_by, found.answer) == (
        "channel",
        "It waits for a channel: all channels of its pool are in use.",
    )
    await dialing.run("UPDATE numbers SET status = 'disabled'")
    assert (await ask(dialing, lead)).refused_by == "number"


async def test_why_counts_a_free_number_of_the_overflow_pool(dialing: Dialing) -> None:
    await dialing.run("UPDATE numbers SET status = 'disabled'")
    await dialing.run("INSERT INTO pools (id, reseller_id, name) VALUES ('q', 'r', 'q')")
    await dialing.run("UPDATE pools SET overflow_pool_id = 'q', overflow_after_s = 5 WHERE id = 'p'")
    other = await dialing.add_number()
    await dialing.run("UPDATE numbers SET pool_id = 'q' WHERE id = $1", other)
    assert (await ask(dialing, await dialing.lead())).refused_by is None


async def test_why_names_who_stopped_all_numbers(dialing: Dialing) -> None:
    await dialing.add_number()
    lead = await dialing.lead()
    await stop(dialing, Scope.NUMBER, str(dialing.number))
    assert (await ask(dialing, lead)).refused_by is None, "the other one may dial"
    await stop(dialing, Scope.CARRIER, "twilio", reason="it is down")
    found = await ask(dialing, lead)
    assert (found.refused_by, "set by ada" in found.answer) == ("number", True)


async def test_why_names_the_flag_service_where_it_decides(dialing: Dialing) -> None:
    lead = await dialing.lead()
    found = await ask(dialing, lead, includes=lambda r, m: False, has_flag_service=True)
    assert found.answer == (
        "This platform does not call it: another system calls its leads, says the flag service"
        " (FEATURE_FLAG_PROVIDER)."
    )


async def test_why_names_a_missing_dialer(dialing: Dialing) -> None:
    lead = await dialing.lead()
    assert (await ask(dialing, lead, looks_for_dialers=True)).refused_by == "dialers"
    await dialing.run("INSERT INTO processes (id, roles) VALUES ('p/1', '{dispatcher}')")
    assert (await ask(dialing, lead, looks_for_dialers=True)).refused_by is None


async def test_why_names_a_lost_projection_and_whether_it_is_being_rebuilt(
    dialing: Dialing, bus: Bus
) -> None:
    lead = await dialing.lead()
    look_at = partial(channels.explain, bus)
    found = await ask(dialing, lead, projection=look_at)
    assert found.refused_by == "projection"
    assert "no process with the role `control` runs to rebuild it" in found.answer
    await dialing.run(
        "INSERT INTO leaders (name, holder, term, expires_at) VALUES ('control', 'x', 1, now() + interval '1 hour')"
    )
    assert "it is being rebuilt" in (await ask(dialing, lead, projection=look_at)).answer
    assert await epoch.begin(bus, 1) is not None
    assert await epoch.publish(bus, 1)
    assert (await ask(dialing, lead, projection=look_at)).refused_by is None
    await channels.configure(bus, Configuration(stops={"m/m": "a process knows why"}))
    found = await ask(dialing, lead, projection=look_at)
    assert (found.refused_by, "a process knows why" in found.answer) == ("control", True)
    assert "knows why" not in (await ask(dialing, lead, Tenant("r", "m"), projection=look_at)).answer


async def test_why_names_an_unreachable_valkey(dialing: Dialing) -> None:
    away = bus_connection.connect("redis://127.0.0.1:1", Keys())
    found = await ask(dialing, await dialing.lead(), projection=partial(channels.explain, away))
    await away.close()
    assert found.answer == "Calls are placed from Postgres, at a reduced rate: Valkey cannot be reached."


# What an intent said, where the same gate looks open a moment later


async def test_why_names_a_recent_refusal_whose_gate_is_open_again(dialing: Dialing) -> None:
    lead = await dialing.lead()
    await dialing.run(
        "INSERT INTO decisions (lead_id, reason, merchant_id, subject, times, until)"
        " VALUES ($1, 'agents', 'm', 'abandon_max', 210, now() + interval '1 second')",
        lead,
    )
    found = await ask(dialing, lead)
    assert found.refused_by == "agents"
    assert "would exceed `abandon_max`, refused 210 times" in found.answer
    await dialing.run("UPDATE decisions SET last_at = now() - interval '1 hour'")
    assert (await ask(dialing, lead)).refused_by is None, "that was an hour ago, and nothing refuses it now"


async def test_why_names_the_error_of_a_lead_whose_intent_raised(dialing: Dialing) -> None:
    lead = await dialing.lead(due_in_s=60)
    await dialing.run(
        "INSERT INTO decisions (lead_id, reason, merchant_id, subject) VALUES ($1, 'error', 'm', 'value out of range')",
        lead,
    )
    found = await ask(dialing, lead)
    assert "deferred by the gate error (value out of range, refused once)" in found.answer

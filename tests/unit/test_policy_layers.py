"""Calling policies in layers: restrictions add up, preferences are the nearest one's."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from trunkline.leads.calling_policy import (
    CallingPolicy,
    Destinations,
    Price,
    problems,
    resolve,
)
from trunkline.leads.limits import CallsPerPerson, PersonLimit
from trunkline.leads.precheck_conditions import Condition, HttpCheck, holds
from trunkline.leads.retries import Retries
from trunkline.leads.rule_packs import PACKS, warnings
from trunkline.leads.windows import Opening, TimeSpan, Window

SF, OKLAHOMA, MUMBAI, NOWHERE = "+14155550123", "+14055550123", "+919820012345", "+8821234567"
LONDON = "+442071234567"
NOW = datetime(2025, 6, 3, 6, 0, tzinfo=UTC)


def hours(start: str, end: str) -> CallingPolicy:
    return CallingPolicy(windows=(Window(spans=(TimeSpan(start=start, end=end),)),))


def at(text: str, zone: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def test_without_a_policy_seven_calls_an_hour_per_person_are_the_only_limit() -> None:
    policy = resolve()
    assert policy.opening(NOWHERE, None, NOW) == Opening(NOW, None)
    assert policy.permits(SF)
    assert policy.calls_per_person == CallsPerPerson(max_calls=7, window_s=3600)
    assert policy.limits_of(SF) == ()


def test_the_windows_of_all_layers_hold_together() -> None:
    policy = resolve(hours("08:00", "21:00"), hours("10:00", "23:00"), hours("00:00", "24:00"))
    opening = policy.opening(SF, None, NOW)
    assert opening is not None
    assert opening.opens_at == at("2025-06-03T10:00", "America/Los_Angeles")
    assert opening.closes_at == at("2025-06-03T21:00", "America/Los_Angeles")


def test_a_window_uses_the_time_zone_of_lead_merchant_or_callee_in_that_order() -> None:
    policy = hours("09:00", "18:00")
    for zone_of_lead, zone_of_merchant, zone in [
        (None, None, "America/Los_Angeles"),
        (None, "Europe/Berlin", "Europe/Berlin"),
        ("Asia/Tokyo", "Europe/Berlin", "Asia/Tokyo"),
    ]:
        layer = policy.model_copy(update={"timezone": zone_of_merchant})
        opening = resolve(merchant=layer).opening(SF, zone_of_lead, at("2025-06-03T00:00", zone))
        assert opening is not None
        assert opening.opens_at == at("2025-06-03T09:00", zone)


def test_a_phone_without_a_known_time_zone_is_not_called() -> None:
    assert resolve(merchant=hours("00:00", "24:00")).opening(NOWHERE, None, NOW) is None


def test_a_pack_holds_for_numbers_of_its_region_and_the_strictest_wins() -> None:
    policy = resolve(CallingPolicy(packs=("us-tcpa", "us-ok", "in-trai")))
    evening = at("2025-06-03T20:30", "America/Chicago")
    assert policy.opening(SF, None, evening) == Opening(
        evening, at("2025-06-03T21:00", "America/Los_Angeles")
    )
    oklahoma = policy.opening(OKLAHOMA, None, evening)
    assert oklahoma is not None
    assert oklahoma.opens_at == at("2025-06-04T08:00", "America/Chicago")
    mumbai = policy.opening(MUMBAI, None, at("2025-06-03T08:30", "Asia/Kolkata"))
    assert mumbai is not None
    assert mumbai.opens_at == at("2025-06-03T09:00", "Asia/Kolkata")
    assert policy.limits_of(OKLAHOMA) == (PersonLimit(max_calls=3, window_h=24),)
    assert policy.limits_of(SF) == ()


def test_every_pack_has_a_date_and_a_region_or_prefixes() -> None:
    for pack in PACKS.values():
        assert pack.as_of.year >= 2025
        assert pack.note
        assert bool(pack.region) != bool(pack.prefixes)


def test_the_lowest_limit_of_all_layers_holds_and_person_limits_add_up() -> None:
    policy = resolve(
        CallingPolicy(attempts_per_day=100, person_limits=(PersonLimit(max_calls=5, window_h=24),)),
        CallingPolicy(attempts_per_day=500, spend_per_day_micros=7),
        CallingPolicy(spend_per_day_micros=9, person_limits=(PersonLimit(max_calls=2, window_h=1),)),
    )
    assert (policy.attempts_per_day, policy.spend_per_day_micros) == (100, 7)
    assert [limit.max_calls for limit in policy.limits_of(SF)] == [5, 2]


def test_a_preference_is_taken_from_the_nearest_layer() -> None:
    policy = resolve(
        CallingPolicy(retries=Retries(base_s=10), price=Price(per_call_micros=1)),
        merchant=CallingPolicy(retries=Retries(base_s=20)),
    )
    assert policy.retries.base_s == 20
    assert policy.price.reserved_micros == 1


@pytest.mark.parametrize(
    ("destinations", "allowed"),
    [
        (Destinations(), True),
        (Destinations(allow=("+1",)), True),
        (Destinations(allow=("+1",), deny=("+1415",)), False),
        (Destinations(allow=("+91",)), False),
        (Destinations(deny=("+91",)), True),
    ],
)
def test_destinations_are_matched_by_prefix(destinations: Destinations, *, allowed: bool) -> None:
    assert resolve(merchant=CallingPolicy(destinations=destinations)).permits(SF) is allowed


def test_all_layers_must_allow_a_destination() -> None:
    only_us, only_sf = Destinations(allow=("+1",)), Destinations(allow=("+1415", "+91"))
    policy = resolve(CallingPolicy(destinations=only_us), merchant=CallingPolicy(destinations=only_sf))
    assert policy.permits(SF)
    assert not policy.permits(MUMBAI)
    assert not policy.permits(OKLAHOMA)


def test_the_price_reserves_for_the_expected_minutes_of_a_call() -> None:
    assert Price(per_call_micros=5, per_minute_micros=100, reserve_minutes=2.5).reserved_micros == 255


def test_a_field_reserved_for_one_layer_is_refused_in_others() -> None:
    policy = CallingPolicy(calls_per_person=CallsPerPerson(), max_concurrent=1, starts_per_s=2)
    assert [p.field for p in problems(policy, "merchant", [], NOW)] == [
        "calls_per_person",
        "max_concurrent",
        "starts_per_s",
    ]
    assert [p.field for p in problems(policy, "platform", [], NOW)] == ["max_concurrent", "starts_per_s"]
    assert [p.field for p in problems(policy, "campaign", [], NOW)] == ["calls_per_person"]


def test_a_window_that_never_opens_is_a_problem_of_the_layer_that_closes_it() -> None:
    assert problems(hours("09:00", "12:00"), "merchant", [hours("08:00", "20:00")], NOW) == []
    (problem,) = problems(hours("20:00", "22:00"), "merchant", [hours("08:00", "20:00")], NOW)
    assert problem.field == "windows"


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": []},
        {"packs": ["US law"]},
        {"timezone": "PST8"},
        {"destinations": {"allow": ["1415"]}},
        {"person_limits": [{"max_calls": 0, "window_h": 1}]},
        {"person_limits": [{"max_calls": 1, "window_h": 169}]},
        {"attempts_per_day": -1},
        {"spend_per_day_micros": 1.5},
        {"prechecks": [{"url": "ftp://example.com"}]},
        {"prechecks": [{"url": "http://me:secret@example.com"}]},
        {"prechecks": [{"url": "https://example.com", "timeout_s": 31}]},
        {"prechecks": [{"url": "https://example.com", "defer_max": 11}]},
        {"prechecks": [{"url": "https://example.com", "headers": {"A B": "c"}}]},
        {"prechecks": [{"url": "https://example.com", "headers": {"A": "c\r\nd: e"}}]},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CallingPolicy.model_validate(wrong)


def test_a_policy_survives_its_own_json() -> None:
    policy = CallingPolicy(
        windows=(Window(spans=(TimeSpan(start="09:00", end="18:00"),), holidays=()),),
        packs=("us-tcpa",),
        prechecks=(HttpCheck(url="https://example.com", conditions=(Condition(path="ok", value=True),)),),
        retries=Retries(base_s=10),
    )
    assert CallingPolicy.model_validate(policy.model_dump(mode="json", exclude_unset=True)) == policy


ANSWER = {
    "status": 200,
    "body": {"ok": True, "n": 5, "tags": ["vip", 1], "name": "Ada", "deep": [{"x": None}]},
}


@pytest.mark.parametrize(
    ("path", "operator", "value", "expected"),
    [
        ("body.ok", "equals", True, True),
        ("body.ok", "equals", 1, False),
        ("body.n", "equals", 5.0, True),
        ("body.n", "not_equals", 5, False),
        ("body.gone", "equals", None, False),
        ("body.gone", "not_equals", 1, False),
        ("body.deep.0.x", "equals", None, True),
        ("body.deep.1.x", "exists", None, False),
        ("body.gone", "missing", None, True),
        ("body.name", "contains", "da", True),
        ("body.tags", "contains", "vip", True),
        ("body.tags", "not_contains", "vip", False),
        ("body.n", "contains", "5", False),
        ("body.n", "gt", 4, True),
        ("body.n", "gte", 5, True),
        ("body.n", "lt", 5, False),
        ("body.n", "lte", 5, True),
        ("body.name", "gt", 4, False),
        ("body.ok", "gt", 0, False),
        ("status", "in", (200, 204), True),
        ("status", "in", 200, False),
    ],
)
def test_a_condition_holds_by_path_operator_and_value(
    path: str, operator: str, value: object, *, expected: bool
) -> None:
    condition = Condition.model_validate({"path": path, "operator": operator, "value": value})
    assert holds(condition, ANSWER) is expected


def test_an_unknown_pack_is_a_problem_and_one_added_by_the_platform_is_not() -> None:
    (problem,) = problems(CallingPolicy(packs=("us-law",)), "merchant", [], NOW)
    assert (problem.field, "us-tcpa" in problem.error) == ("packs", True)
    platform = CallingPolicy.model_validate({"edited_packs": [GERMANY]})
    assert problems(CallingPolicy(packs=("de-own",)), "merchant", [platform], NOW) == []
    (problem,) = problems(platform, "merchant", [], NOW)
    assert problem.field == "edited_packs"


GERMANY = {"name": "de-own", "as_of": "2026-01-01", "note": "ours", "region": "DE",
           "windows": [{"spans": [{"start": "10:00", "end": "11:00"}]}]}  # fmt: skip


def test_an_edited_pack_replaces_the_one_it_edits() -> None:
    shorter = {**GERMANY, "name": "us-tcpa", "region": "US"}
    platform = CallingPolicy.model_validate({"edited_packs": [shorter, GERMANY]})
    policy = resolve(platform, merchant=CallingPolicy(packs=("us-tcpa", "de-own")))
    opening = policy.opening(SF, None, at("2025-06-03T08:00", "America/Los_Angeles"))
    assert opening is not None
    assert opening.opens_at == at("2025-06-03T10:00", "America/Los_Angeles")
    berlin = policy.opening("+493012345678", None, at("2025-06-03T08:00", "Europe/Berlin"))
    assert berlin is not None
    assert berlin.opens_at == at("2025-06-03T10:00", "Europe/Berlin")


def test_a_removed_pack_counts_as_all_packs_together() -> None:
    opening = resolve(merchant=CallingPolicy(packs=("gone",))).opening(
        SF, None, at("2025-06-03T08:00", "America/Los_Angeles")
    )
    assert opening is not None
    assert opening.opens_at == at("2025-06-03T10:00", "America/Los_Angeles"), (
        "as in France, the latest to open"
    )


@pytest.mark.parametrize(
    ("phone", "pack", "zone", "before", "opens"),
    [
        ("+14165550123", "ca-crtc", "America/Toronto", "2025-06-07T08:00", "2025-06-07T10:00"),
        ("+14165550123", "ca-crtc", "America/Toronto", "2025-06-06T08:00", "2025-06-06T09:00"),
        ("+442079460000", "gb-dma", "Europe/London", "2025-12-24T21:30", "2025-12-27T09:00"),
        ("+33142345678", "fr-prospection", "Europe/Paris", "2025-07-11T13:30", "2025-07-11T14:00"),
        ("+33142345678", "fr-prospection", "Europe/Paris", "2025-07-11T20:00", "2025-07-15T10:00"),
        ("+61290000000", "au-telemarketing", "Australia/Sydney", "2025-06-07T17:00", "2025-06-09T09:00"),
    ],
)
def test_the_packs_of_other_countries_open_at_their_hours(
    phone: str, pack: str, zone: str, before: str, opens: str
) -> None:
    opening = resolve(merchant=CallingPolicy(packs=(pack,))).opening(phone, zone, at(before, zone))
    assert opening is not None
    assert opening.opens_at == at(opens, zone)


def test_a_number_without_a_zone_needs_all_zones_of_its_country_open() -> None:
    """A window from nine to eighteen in all of Australia: from Perth's morning to Lord Howe's evening."""
    policy = resolve(merchant=hours("09:00", "18:00"))
    opening = policy.opening("+61412345678", None, at("2025-06-03T00:00", "UTC"))
    assert opening is not None
    assert opening.closes_at is not None
    assert opening.opens_at >= at("2025-06-03T09:00", "Australia/Perth")
    assert opening.closes_at <= at("2025-06-03T18:00", "Australia/Lord_Howe")


def test_without_retries_in_any_layer_the_default_retries_hold() -> None:
    usual = Retries(base_s=5)
    assert resolve(usual_retries=usual).retries is usual
    own = CallingPolicy(retries=Retries(base_s=7))
    assert resolve(merchant=own, usual_retries=usual).retries.base_s == 7


def test_abandon_max_is_0_unless_a_layer_sets_it() -> None:
    assert resolve().abandon_max_of(SF) == 0
    assert resolve(campaign=CallingPolicy(abandon_max=0.03)).abandon_max_of(SF) == 0.03


def test_the_lowest_abandon_max_of_all_layers_holds() -> None:
    low, high = CallingPolicy(abandon_max=0.01), CallingPolicy(abandon_max=0.05)
    assert resolve(low, campaign=high).abandon_max_of(SF) == 0.01
    assert resolve(high, campaign=low).abandon_max_of(SF) == 0.01
    assert resolve(CallingPolicy(abandon_max=0), campaign=high).abandon_max_of(SF) == 0
    assert resolve(campaign=CallingPolicy(abandon_threshold_s=5)).abandon_threshold_s == 5
    assert resolve(CallingPolicy(abandon_threshold_s=1), campaign=high).abandon_threshold_s == 1


def test_an_abandon_max_above_a_higher_layers_is_refused_with_the_allowed_one() -> None:
    above = [CallingPolicy(abandon_max=0.02), CallingPolicy(abandon_max=0.03)]
    found = problems(CallingPolicy(abandon_max=0.03), "campaign", above, NOW)
    assert [(problem.field, problem.error) for problem in found] == [
        ("abandon_max", "At most 0.02: a layer above says so, and can only be tightened.")
    ]
    assert problems(CallingPolicy(abandon_max=0.02), "campaign", above, NOW) == []


def test_an_abandon_max_given_as_a_percentage_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"a share from 0 to 0.1: 0.03 is 3 %"):
        CallingPolicy(abandon_max=3)
    with pytest.raises(ValidationError):
        CallingPolicy(abandon_max=-0.01)


def test_packs_cap_abandon_max_by_the_callees_country() -> None:
    policy = resolve(CallingPolicy(packs=("us-tcpa", "gb-dma")), campaign=CallingPolicy(abandon_max=0.05))
    assert policy.abandon_max_of(SF) == 0.03
    assert policy.abandon_max_of(LONDON) == 0
    assert policy.abandon_max_of(MUMBAI) == 0.05
    assert (policy.ring_min_s(SF), policy.ring_min_s(MUMBAI)) == (15, 0)


def test_a_removed_pack_allows_no_abandoned_call() -> None:
    policy = resolve(CallingPolicy(packs=("gone",)), campaign=CallingPolicy(abandon_max=0.03))
    assert policy.abandon_max_of(SF) == 0


def test_the_abandon_message_names_the_caller_and_the_number_to_call_back() -> None:
    pack = resolve(CallingPolicy(packs=("us-tcpa",)))
    heard = pack.message_on_abandonment(SF, caller="Acme Stores", number="+14155550100")
    assert "Acme Stores" in heard
    assert "1 4 1 5 5 5 5 0 1 0 0" in heard
    own = resolve(
        CallingPolicy(packs=("us-tcpa",)), campaign=CallingPolicy(abandon_message="{caller}: {number}")
    )
    assert own.message_on_abandonment(SF, caller="Acme", number="+123") == "Acme: 1 2 3"
    assert "Acme" in resolve().message_on_abandonment(SF, caller="Acme", number="+123")


@pytest.mark.parametrize(
    "text", ["Call {phone}", "{", "{caller.name}", "{0}", "{caller[0]}", "{caller:>9999999}", "{number!r}"]
)
def test_an_abandon_message_with_other_placeholders_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="abandon_message"):
        CallingPolicy(abandon_message=text)


def test_a_pack_is_old_after_a_year() -> None:
    pack = PACKS["us-tcpa"]
    assert not pack.is_old(pack.as_of + timedelta(days=365))
    assert pack.is_old(pack.as_of + timedelta(days=366))
    assert warnings([pack], pack.as_of) == []
    [told] = warnings([pack], pack.as_of + timedelta(days=366))
    assert pack.as_of.isoformat() in told


def test_packs_with_rules_on_abandoned_calls_have_the_date_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "explanation" / "abandonment.md").read_text(encoding="utf-8")
    told = re.findall(r"Compared on (\d{4}-\d\d-\d\d)", page)
    dated = {pack.name: pack.as_of.isoformat() for pack in PACKS.values() if pack.abandoned_calls is not None}
    assert [dated] == [dict.fromkeys(("us-tcpa", "gb-dma"), date) for date in told]

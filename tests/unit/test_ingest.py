import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from trunkline.leads.ingest import LeadRefused, LeadRequest, prepare
from trunkline.store.leads import Admission, NewLead

NOON = datetime(2030, 1, 7, 12, tzinfo=UTC)
ADMISSION = Admission(
    merchant_id="m",
    reseller_id="r",
    default_region="US",
    pool_id="main",
    policy=(None, None, None, None),
    now=NOON,
)


def under(**policy: Any) -> Admission:
    """The same merchant, with a calling policy of its own."""
    return replace(ADMISSION, policy=(None, None, json.dumps(policy), None))


def hours(start: str, end: str, zone: str | None = "UTC") -> dict[str, Any]:
    return {"spans": [{"start": start, "end": end}], "timezone": zone}


def request(**more: Any) -> LeadRequest:
    return LeadRequest.model_validate({"request_id": "1", "phone": "+14155550123", **more})


def prepared(**more: Any) -> NewLead:
    new = prepare(request(**more), ADMISSION)
    assert isinstance(new, NewLead)
    return new


def problems(**more: Any) -> dict[str, str]:
    refused = prepare(request(**more), ADMISSION)
    assert isinstance(refused, LeadRefused)
    return {problem.field: problem.error for problem in refused.problems}


def test_a_request_with_nothing_but_an_id_and_a_phone_becomes_a_lead() -> None:
    new = prepared()
    assert (new.reseller_id, new.merchant_id, new.pool_id, new.phone) == ("r", "m", "main", "+14155550123")
    assert (new.priority, new.max_attempts, new.scheduled_at, new.payload) == (50, 1, None, "{}")


def test_the_phone_may_be_in_the_payload_in_the_merchants_own_spelling() -> None:
    assert prepared(phone=None, payload={"customer_mobile_number": "(415) 555-0123"}).phone == "+14155550123"


def test_the_phone_field_wins_over_the_payload() -> None:
    assert prepared(payload={"customer_mobile_number": "+14155550199"}).phone == "+14155550123"


def test_a_moment_is_kept_in_utc() -> None:
    new = prepared(scheduled_at="2030-05-01T09:30:00+02:00")
    assert new.scheduled_at == datetime(2030, 5, 1, 7, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"phone": None}, "phone"),
        ({"phone": "12"}, "phone"),
        ({"phone": None, "payload": {"customer_mobile_number": "12"}}, "payload.customer_mobile_number"),
        (
            {"phone": None, "payload": {"customer_mobile_number": 14155550123}},
            "payload.customer_mobile_number",
        ),
        ({"payload": {"a": "\x00"}}, "payload"),
        ({"scheduled_at": "9999-12-31T00:00:00+00:00"}, "scheduled_at"),
        ({"reporting_webhook_url": "ftp://acme.example"}, "reporting_webhook_url"),
        ({"reporting_webhook_url": "https://"}, "reporting_webhook_url"),
        ({"reporting_webhook_url": "https://user:pw@acme.example"}, "reporting_webhook_url"),
        ({"reporting_webhook_url": "https://acme.example:99999"}, "reporting_webhook_url"),
    ],
)
def test_a_bad_value_is_reported_at_its_field(more: dict[str, Any], field: str) -> None:
    assert list(problems(**more)) == [field]


def test_all_problems_are_reported_at_once() -> None:
    assert set(problems(phone="12", payload={"a": "\x00"})) == {"phone", "payload"}


@pytest.mark.parametrize(
    "more",
    [
        {"request_id": ""},
        {"request_id": "x" * 201},
        {"request_id": "a\x00b"},
        {"priority": 0},
        {"priority": 100},
        {"priority": "5"},
        {"priority": 5.0},
        {"max_attempts": 0},
        {"max_attempts": 21},
        {"max_attempts": True},
        {"scheduled_at": "2030-05-01T09:30:00"},
        {"scheduled_at": "0001-01-01T00:00:00+10:00"},
        {"scheduled_at": 1900000000},
        {"campaign_id": "spring"},
        {"pool": "Not A Pool"},
        {"merchant_id": "../m"},
        {"payload": []},
        {"schedule_at": "2030-05-01T09:30:00Z"},
    ],
)
def test_what_has_the_wrong_shape_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        request(**more)


@pytest.mark.parametrize(("pool", "says"), [(None, "default_pool"), ("other", "no pool 'other'")])
def test_without_a_pool_that_the_merchant_may_use_there_is_no_lead(pool: str | None, says: str) -> None:
    refused = prepare(request(pool=pool), replace(ADMISSION, pool_id=None))
    assert isinstance(refused, LeadRefused)
    [problem] = refused.problems
    assert problem.field == "pool"
    assert says in problem.error


@pytest.mark.parametrize(
    "same",
    [
        {"phone": "(415) 555-0123"},
        {"priority": 50},
        {"max_attempts": 1},
        {"payload": {"b": 2, "a": 1}},
        {"scheduled_at": "2030-05-01T07:30:00Z"},
    ],
)
def test_another_spelling_of_the_same_content_has_the_same_fingerprint(same: dict[str, Any]) -> None:
    base = {"payload": {"a": 1, "b": 2}, "scheduled_at": "2030-05-01T09:30:00+02:00"}
    assert prepared(**base).request_hash == prepared(**(base | same)).request_hash


@pytest.mark.parametrize(
    "other",
    [
        {"phone": "+14155550124"},
        {"priority": 51},
        {"max_attempts": 2},
        {"payload": {"a": 2}},
        {"scheduled_at": "2030-05-01T07:30:00Z"},
        {"pool": "main"},
        {"campaign_id": "0197b0a0-0000-7000-8000-000000000000"},
        {"reporting_webhook_url": "https://acme.example/hook"},
    ],
)
def test_other_content_has_another_fingerprint(other: dict[str, Any]) -> None:
    assert prepared().request_hash != prepared(**other).request_hash


def test_without_a_policy_a_lead_is_due_when_it_is_scheduled() -> None:
    assert (prepared().due_at, prepared().closes_at, prepared().is_deferred) == (None, None, False)


def test_a_lead_whose_window_is_open_is_due_now_and_knows_when_it_closes() -> None:
    new = prepare(request(), under(windows=[hours("09:00", "18:00")]))
    assert isinstance(new, NewLead)
    assert (new.due_at, new.closes_at, new.is_deferred) == (NOON, NOON.replace(hour=18), False)


def test_a_lead_whose_window_is_closed_is_due_when_it_opens_and_says_why() -> None:
    new = prepare(request(), under(windows=[hours("14:00", "18:00")]))
    assert isinstance(new, NewLead)
    assert (new.due_at, new.closes_at) == (NOON.replace(hour=14), NOON.replace(hour=18))
    assert new.is_deferred


def test_the_window_is_checked_at_the_leads_scheduled_time() -> None:
    wanted_at = NOON + timedelta(days=1, hours=8)
    new = prepare(request(scheduled_at=wanted_at), under(windows=[hours("09:00", "18:00")]))
    assert isinstance(new, NewLead)
    assert (new.scheduled_at, new.due_at) == (wanted_at, NOON + timedelta(days=1, hours=21))
    assert not new.is_deferred, "it is not wanted yet"


def test_a_window_is_read_in_the_callees_time_zone() -> None:
    policy = under(windows=[hours("09:00", "18:00", zone=None)])
    by_number = prepare(request(), policy)
    given = prepare(request(timezone="Asia/Tokyo"), policy)
    assert isinstance(by_number, NewLead)
    assert isinstance(given, NewLead)
    assert by_number.due_at == NOON.replace(hour=17), "nine in the morning in San Francisco"
    assert given.due_at == NOON + timedelta(hours=12), "nine in the morning in Tokyo"


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        (under(windows=[hours("09:00", "10:00"), hours("11:00", "12:00")]), "never open"),
        (under(destinations={"allow": ["+44"]}), "may not call"),
        (under(destinations={"deny": ["+1415"]}), "may not call"),
    ],
)
def test_a_person_who_can_never_be_called_is_refused_at_once(policy: Admission, word: str) -> None:
    refused = prepare(request(), policy)
    assert isinstance(refused, LeadRefused)
    assert [problem.field for problem in refused.problems] == ["phone"]
    assert word in refused.problems[0].error


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match="no time zone"):
        request(timezone="Mars/Olympus")

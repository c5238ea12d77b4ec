"""Every checker of the chaos machine finds its violation where one is planted, and nothing in an orderly run."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.support.agent.pod_records import PodRecord, Served, Span
from tests.support.chaos import checkers, tenancy
from tests.support.chaos.evidence import (
    AppRow,
    AppRun,
    AttemptRow,
    Evidence,
    LeadRow,
    Move,
    ProcessState,
    Waiting,
)
from tests.support.chaos.load import Entry
from tests.support.chaos.plan import Plan, Strike
from trunkline.telephony.simulator.answered_calls import AnsweredCall, DocumentRecord
from trunkline.telephony.simulator.ledger import Dial

NOW = datetime(2030, 5, 1, tzinfo=UTC)
LEAD, OTHER = UUID(int=1), UUID(int=2)
FIRST, SECOND = UUID(int=11), UUID(int=12)
CAMPAIGN = UUID(int=21)
PHONE, TWILIO = "+12125550001", "+14155550101"


def lead(id_: UUID = LEAD, **changes: object) -> LeadRow:
    row = LeadRow(id_, tenancy.SHOP, None, f"request-{id_.int}", PHONE, "FINISHED", "ANSWERED", None)
    return replace(row, **changes)  # type: ignore[arg-type]


def attempt(id_: UUID = FIRST, **changes: object) -> AttemptRow:
    row = AttemptRow(id_, LEAD, "outbound", None, PHONE, "ended", False, 1, NOW, NOW, "joined")
    return replace(row, **changes)  # type: ignore[arg-type]


def dial(no: int = 0, attempt_id: UUID = FIRST, **changes: object) -> Dial:
    row = Dial(
        no, f"call-{no}", "AC", str(attempt_id), PHONE, TWILIO, 100.0, 100.1, 101.0, 110.0, "completed"
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def pod(*calls: tuple[str, float, float]) -> PodRecord:
    return PodRecord(
        "pod-1",
        "standard",
        Span(0.0),
        [Served("pod-1", call, Span(began, ended)) for call, began, ended in calls],
    )


def answered(call_id: str = "call-0", **changes: object) -> AnsweredCall:
    row = AnsweredCall(
        0,
        call_id,
        "twilio",
        "AC",
        str(FIRST),
        PHONE,
        TWILIO,
        "outbound",
        101.0,
        agent_at=101.2,
        ended_at=110.0,
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def entry(what: str, subject: str = "", answered_s: float = 50.0, **detail: object) -> Entry:
    return Entry(what, subject, answered_s - 0.1, answered_s, detail)


def orderly() -> Evidence:
    """One lead, called once, answered, with an agent; a job and two events; a reminder; an edit; everything at rest."""
    return Evidence(
        Plan(1),
        diary=[
            entry("lead", str(LEAD), 99.0, phone=PHONE, merchant=tenancy.SHOP),
            entry("reminder", "series", phone="+12125550009"),
            entry("policy", tenancy.CLINIC),
            entry("listed", tenancy.CLINIC, strangers=[]),
            entry("merchant stopped", tenancy.SHOP, 10.0, until_s=20.0),
        ],
        dials=[dial()],
        answered=[answered()],
        pods=[pod(("call-0", 101.2, 110.0))],
        leads=[lead(), lead(OTHER, phone="+12125550009")],
        attempts=[attempt()],
        attempt_moves=[Move(FIRST, "dialing", "accepted"), Move(FIRST, "answered", "ended")],
        lead_moves=[Move(LEAD, "BACKLOG", "PROCESSING"), Move(LEAD, "PROCESSING", "FINISHED")],
        asked=[AppRow(1, "job", "", "a"), AppRow(2, "event", "k", "b"), AppRow(3, "event", "k", "c")],
        done=[AppRow(1, "job", "", "a"), AppRow(2, "event", "k", "b"), AppRow(3, "event", "k", "c")],
        occurrences={"series": 1},
        audit=[("policy.set", tenancy.CLINIC), ("control.stopped", "merchant")],
        processes=[ProcessState("api-1", 90.0, 0.5, 6)],
        forged=[401],
        still_accepted=[("key", 3.0)],
    )


def test_an_orderly_run_has_no_violation() -> None:
    assert checkers.violations(orderly()) == []


def two_jobs_of_a_key() -> list[AppRun]:
    return [
        AppRun("k", "a", NOW, NOW + timedelta(seconds=2)),
        AppRun("k", "b", NOW + timedelta(seconds=1), NOW + timedelta(seconds=3)),
    ]


PLANTED: dict[Callable[[Evidence], object], list[dict[str, object]]] = {
    checkers.one_dial_per_attempt: [{"dials": [dial(), dial(1, started_at=200.0, ended_at=201.0)]}],
    checkers.one_live_call_per_lead: [
        {
            "dials": [dial(), dial(1, SECOND, from_="+14155550102", started_at=105.0)],
            "attempts": [attempt(), attempt(SECOND, ordinal=2)],
        }
    ],
    checkers.refused_means_not_dialled: [
        {"attempts": [attempt(state="rejected")]},
        {"attempts": [attempt(state="absent")]},
    ],
    checkers.channels_kept: [
        {"dials": [dial(no, UUID(int=100 + no), to=f"+1212555{no:04}") for no in range(7)]},
        {
            "diary": [entry("channels", TWILIO, 90.0, max_channels=1)],
            "dials": [dial(), dial(1, SECOND, to="+12125550002", started_at=103.0)],
        },
    ],
    checkers.pods_within_capacity: [{"pods": [pod(("call-0", 101.0, 110.0), ("call-1", 109.0, 120.0))]}],
    checkers.accepted_leads_exist: [
        {"leads": []},
        {"diary": [entry("bulk row", "request-7")]},
        {"diary": [entry("campaign", str(CAMPAIGN), phones=["+12125550077"])]},
    ],
    checkers.every_lead_ended: [
        {"leads": [lead(status="PROCESSING", outcome=None)]},
        {"leads": [lead(outcome="UNKNOWN", reason="no_word")]},
        {"attempts": [attempt(holds_channel=True)]},
    ],
    checkers.reasons_to_wait_hold: [
        {"waiting": [Waiting(str(LEAD), tenancy.SHOP, None, ("window",))]},
        {"waiting": [Waiting(str(LEAD), tenancy.CLINIC, None, ())]},
        {
            "diary": [entry("campaign stopped", str(CAMPAIGN))],
            "waiting": [Waiting(str(LEAD), tenancy.CLINIC, str(CAMPAIGN), ("limit",))],
        },
    ],
    checkers.dials_are_recorded: [{"attempts": []}, {"dials": [dial(attempt=None)]}],
    checkers.valkey_is_the_projection: [{"left_in_valkey": "{'holders': ['x']}"}],
    checkers.facts_never_go_back: [
        {"attempt_moves": [Move(FIRST, "ended", "ringing")]},
        {"lead_moves": [Move(LEAD, "FINISHED", "BACKLOG")]},
    ],
    checkers.outcomes_as_the_ledger_tells: [
        {"attempts": [attempt(answered_at=None)]},
        {"attempts": [attempt(agent="none")]},
        {"pods": [pod()], "attempts": [attempt(agent="joined")]},
        {"leads": [lead(outcome="NO_ANSWER")]},
    ],
    checkers.nobody_sees_strangers: [{"diary": [entry("listed", tenancy.CLINIC, strangers=[str(LEAD)])]}],
    checkers.revoked_keys_are_refused: [{"still_accepted": [("key", 11.0)]}],
    checkers.nobody_waits_beside_a_free_agent: [
        {"answered": [answered("call-9", agent_at=None)], "pods": [pod()]},
        {"answered": [answered("call-9", direction="inbound", agent_at=None)], "pods": [pod()]},
    ],
    checkers.answers_are_documents: [
        {"answered": [answered(documents=[DocumentRecord("answer", 101.0, [500], bad=1)])]},
    ],
    checkers.stops_are_kept: [
        {"diary": [entry("everything stopped", "", 95.0, until_s=105.0)]},
        {"diary": [entry("merchant stopped", tenancy.SHOP, 95.0, until_s=105.0)]},
        {"diary": [entry("number stopped", TWILIO, 95.0, until_s=105.0)]},
        {
            "diary": [entry("campaign stopped", str(CAMPAIGN), 95.0, until_s=105.0)],
            "leads": [lead(campaign_id=CAMPAIGN)],
        },
    ],
    checkers.ended_leads_are_not_dialled: [
        {"diary": [entry("aborted", str(LEAD), 95.0)]},
        {"diary": [entry("opted out", PHONE, 95.0)]},
        {"diary": [entry("campaign stopped", str(CAMPAIGN), 95.0)], "leads": [lead(campaign_id=CAMPAIGN)]},
    ],
    checkers.windows_are_kept: [
        {"diary": [entry("campaign closed", str(CAMPAIGN))], "leads": [lead(campaign_id=CAMPAIGN)]},
    ],
    checkers.limits_are_kept: [
        {
            "leads": [
                lead(UUID(int=n), merchant_id=tenancy.CLINIC, phone=f"+1212555{n:04}") for n in range(30)
            ],
            "dials": [dial(n, UUID(int=100 + n), to=f"+1212555{n:04}") for n in range(30)],
        },
        {
            "leads": [lead(UUID(int=n), campaign_id=CAMPAIGN, phone=f"+1212555{n:04}") for n in range(4)],
            "dials": [dial(n, UUID(int=100 + n), to=f"+1212555{n:04}") for n in range(4)],
        },
        {
            "leads": [lead(UUID(int=n), campaign_id=CAMPAIGN, phone=f"+1212555{n:04}") for n in range(6)],
            "dials": [
                dial(
                    n,
                    UUID(int=100 + n),
                    to=f"+1212555{n:04}",
                    started_at=100 + n / 10,
                    requested_at=100 + n / 10,
                    ended_at=100.05 + n / 10,
                )
                for n in range(6)
            ],
        },
    ],
    checkers.jobs_end_once: [
        {"done": []},
        {"done": [AppRow(1, "job", "", "a"), AppRow(2, "job", "", "a")]},
        {"runs": two_jobs_of_a_key()},
    ],
    checkers.events_in_order_and_once: [
        {"done": [AppRow(1, "event", "k", "b")]},
        {"done": [AppRow(n, "event", "k", name) for n, name in enumerate("bbc")]},
        {"done": [AppRow(n, "event", "k", name) for n, name in enumerate("cb")]},
    ],
    checkers.occurrences_have_one_lead: [
        {"occurrences": {}},
        {"leads": [lead(OTHER, phone="+12125550009"), lead(LEAD, phone="+12125550009")]},
    ],
    checkers.edits_are_audited: [{"audit": [("control.stopped", "merchant")]}],
    checkers.forgeries_are_refused: [{"forged": [401, 200]}],
    checkers.processes_come_to_rest: [
        {"processes": [ProcessState("api-1", 90.0, 400.0, 6)]},
        {"processes": [ProcessState("api-1", 900.0, 0.5, 6)]},
        {"processes": [ProcessState("api-1", 90.0, 0.5, 60)]},
    ],
}


def test_every_checker_has_a_planted_violation() -> None:
    assert set(PLANTED) == set(checkers.CHECKERS)


@pytest.mark.parametrize(
    ("checker", "planted"),
    [(checker, planted) for checker, all_planted in PLANTED.items() for planted in all_planted],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_violation_is_found(
    checker: Callable[[Evidence], object], planted: dict[str, object]
) -> None:
    evidence = replace(orderly(), **planted)  # type: ignore[arg-type]

    assert list(checker(evidence)), checker.__name__  # type: ignore[call-overload]


def test_a_limit_that_was_lowered_holds_a_second_after_the_answer() -> None:
    calls = [dial(), dial(1, SECOND, to="+12125550002", started_at=100.5)]
    lowered = [entry("channels", TWILIO, 100.0, max_channels=1)]

    assert not list(checkers.channels_kept(replace(orderly(), dials=calls, diary=lowered)))


def test_nobody_is_owed_an_agent_while_a_fault_lasts() -> None:
    struck = [(Strike(0.0, "valkey killed"), 100.0, 109.0)]
    waits = replace(orderly(), answered=[answered("call-9", agent_at=None)], pods=[pod()], struck=struck)

    assert not list(checkers.nobody_waits_beside_a_free_agent(waits))

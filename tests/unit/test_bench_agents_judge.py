"""The judge of `bench/agents` finds what went wrong, and finds nothing where nothing did."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.agents import scenario
from bench.agents.__main__ import PODS, is_enough
from bench.agents.faults import FAULTS, Strike, rings
from bench.agents.judge import Evidence, Verdict, judge
from bench.agents.proof import judged_again
from bench.agents.records import Attempt, Lead
from bench.agents.scenario import AWAY_MIN
from tests.support.agent.pod_records import PodRecord, Served, Span
from trunkline.telephony.simulator.answered_calls import AnsweredCall, DocumentRecord, StreamRecord
from trunkline.telephony.simulator.ledger import Dial

TWILIO, EXOTEL = "+14155550101", "+14155550103"
PERSON = "+12122000001"


def a_dial(call: str = "c1", *, from_: str = TWILIO, to: str = PERSON, at_s: float = 100.0) -> Dial:
    """Answered after 2 s, for ten."""
    return Dial(0, call, "acc", f"attempt-{call}", to, from_, at_s, at_s, at_s + 2, at_s + 12, "completed")


def an_answer(dial: Dial, *, pod: str = "pod-1", ended: str = "by_person", status: int = 200) -> AnsweredCall:
    assert dial.answered_at is not None
    assert dial.ended_at is not None
    stream = StreamRecord(f"ws://x/ws/pod/{pod}/{dial.call_id}", dial.answered_at, dial.answered_at)
    stream.ended = ended  # type: ignore[assignment]
    document = DocumentRecord(
        "answer", dial.answered_at, [status], 0.05, said="stream", bad=int(status >= 400)
    )
    return AnsweredCall(
        no=0,
        call_id=dial.call_id,
        carrier="exotel" if dial.from_ == EXOTEL else "twilio",
        account="acc",
        attempt=dial.attempt,
        to=dial.to,
        from_=dial.from_,
        direction="outbound",
        answered_at=dial.answered_at,
        documents=[document],
        streams=[stream],
        agent_at=dial.answered_at,
        ended_at=dial.ended_at,
        ended_by="person",
    )


def a_pod(name: str = "pod-1", calls: Sequence[Served] = (), *, died_s: float = math.inf) -> PodRecord:
    return PodRecord(name, "standard", Span(0.0, died_s), list(calls))


def served(call: str = "c1", *, pod: str = "pod-1", span: Span | None = None, killed: bool = False) -> Served:
    return Served(pod, call, span or Span(102.0, 112.0), killed)


def a_verdict(
    dials: Sequence[Dial],
    answered: Sequence[AnsweredCall],
    pods: Sequence[PodRecord],
    *,
    outcome: str | None = "ANSWERED",
    strikes: Sequence[Strike] = (),
    pod_count: int = 40,
    fault: str = "valkey_killed",
    away_min: int = 0,
    agent: str | None = None,
) -> Verdict:
    attempts = [Attempt(f"attempt-{dial.call_id}", "l", "ended", True, "completed", agent) for dial in dials]
    leads = [
        Lead("l", scenario.STANDARD, dial.to, "FINISHED" if outcome else "BACKLOG", outcome, None)
        for dial in dials
    ]
    evidence = Evidence(dials, answered, pods, strikes, attempts, leads, unsettled=0)
    return judge(fault, pod_count, evidence, away_min=away_min)


def test_a_call_with_its_agent_meets_every_goal() -> None:
    dial = a_dial()
    verdict = a_verdict([dial], [an_answer(dial)], [a_pod(calls=[served()])])
    assert (verdict.met, verdict.answered, verdict.without_agent) == (True, 1, 0)


def test_a_call_without_an_agent_misses_the_goal_while_a_pod_is_free() -> None:
    dial = a_dial()
    dial.ended_at = 102.1
    verdict = a_verdict([dial], [an_answer(dial, ended="failed")], [a_pod()], outcome=None)
    assert (verdict.without_agent, verdict.without_agent_while_one_was_free) == (1, 1)
    assert not verdict.met


def test_a_call_without_an_agent_is_excused_only_if_all_pods_were_busy_and_as_many_as_channels() -> None:
    dial = a_dial()
    busy = a_pod(calls=[served("other", span=Span(0.0, 500.0))])
    many = a_verdict([dial], [an_answer(dial)], [busy], outcome=None)
    few = a_verdict([dial], [an_answer(dial)], [busy], outcome=None, pod_count=20)
    assert (many.without_agent, many.without_agent_while_one_was_free) == (1, 0)
    assert "without_agent" not in many.examples.get("missed", [])
    assert "without_agent" in few.examples["missed"]


def test_a_lead_recorded_as_answered_without_an_agent_is_recorded_wrongly() -> None:
    dial = a_dial()
    verdict = a_verdict([dial], [an_answer(dial)], [a_pod()], outcome="ANSWERED")
    assert verdict.leads_recorded_wrongly == 1


def test_a_call_with_an_agent_and_no_outcome_is_recorded_wrongly() -> None:
    dial = a_dial()
    verdict = a_verdict([dial], [an_answer(dial)], [a_pod(calls=[served()])], outcome=None)
    assert verdict.leads_recorded_wrongly == 1


def test_two_calls_at_a_time_on_one_pod_are_found_across_its_processes() -> None:
    first, second = a_dial(), a_dial("c2", to="+12122000002", at_s=103.0)
    pods = [
        a_pod(calls=[served()]),
        a_pod(calls=[served("c2", span=Span(105.0, 115.0))]),
    ]
    verdict = a_verdict([first, second], [an_answer(first), an_answer(second)], pods)
    assert verdict.two_calls_on_exclusive_pod == 1


def test_an_answer_that_is_no_document_counts_although_another_try_gave_one() -> None:
    dial = a_dial()
    verdict = a_verdict([dial], [an_answer(dial, status=500)], [a_pod(calls=[served()])])
    assert (verdict.answers_not_documents, verdict.met) == (1, False)


def test_a_call_whose_pod_died_without_a_successor_is_dropped() -> None:
    dial = a_dial()
    died = a_pod(calls=[served(span=Span(102.0, 106.0), killed=True)], died_s=106.0)
    verdict = a_verdict([dial], [an_answer(dial, ended="lost")], [died])
    assert (verdict.people_at_killed_pods, verdict.people_dropped) == (1, 1)


def test_a_call_whose_pod_died_with_a_successor_is_not_dropped() -> None:
    dial = a_dial()
    answer = an_answer(dial, ended="lost")
    answer.streams.append(StreamRecord("ws://x/ws/pod/pod-2/c1", 106.2, 106.2, ended="by_person"))
    pods = [
        a_pod(calls=[served(span=Span(102.0, 106.0), killed=True)], died_s=106.0),
        a_pod("pod-2", [served(pod="pod-2", span=Span(106.3, 112.0))]),
    ]
    verdict = a_verdict([dial], [answer], pods)
    assert (verdict.people_at_killed_pods, verdict.people_dropped, verdict.met) == (1, 0, True)


def test_exotel_is_excused_where_an_engine_was_away_or_its_pod_was_gone_and_not_otherwise() -> None:
    dial = a_dial(from_=EXOTEL)
    answer = an_answer(dial, ended="failed")
    away = Strike(Span(95.0, 103.0), frozenset({"valkey"}))
    plain = a_verdict([dial], [answer], [a_pod()], outcome=None)
    with_engine_away = a_verdict([dial], [answer], [a_pod()], outcome=None, strikes=[away])
    with_pod_gone = a_verdict([dial], [answer], [a_pod(died_s=98.0)], outcome=None)
    found = [one.exotel_without_agent_unexcused for one in (plain, with_engine_away, with_pod_gone)]
    assert found == [1, 0, 0]


def test_dials_that_resume_late_after_a_fault_miss_the_goal() -> None:
    dial = a_dial(at_s=120.0)
    strike = Strike(Span(100.0, 110.0), frozenset({"valkey"}))
    pod = a_pod(calls=[served(span=Span(122.0, 132.0))])
    verdict = a_verdict([dial], [an_answer(dial)], [pod], strikes=[strike])
    assert (verdict.dials_again_s, verdict.met) == (10.0, False)


# Whether enough was seen, and soon enough


@pytest.mark.parametrize(("away_min", "missed"), [(0, []), (1, []), (2, ["too_few_away"])])
def test_a_run_with_too_few_answers_while_the_engine_was_down_misses_the_goal(
    away_min: int, missed: list[str]
) -> None:
    early, late = a_dial(), a_dial("c2", to="+12122000002", at_s=113.0)
    away = Strike(Span(101.0, 112.0), frozenset({"postgres"}))
    pod = a_pod(calls=[served(), served("c2", span=Span(115.0, 125.0))])
    verdict = a_verdict(
        [early, late], [an_answer(early), an_answer(late)], [pod], strikes=[away], away_min=away_min
    )
    assert verdict.answered_while_engine_away == 1
    assert verdict.examples.get("missed", []) == missed


def answered_after(took_s: float, statuses: list[int], fault: str) -> Verdict:
    dial = a_dial()
    answer = an_answer(dial)
    answer.documents[-1].took_s, answer.documents[-1].statuses = took_s, statuses
    return a_verdict([dial], [answer], [a_pod(calls=[served()])], fault=fault)


@pytest.mark.parametrize(
    ("fault", "took_s", "missed"),
    [
        ("postgres_killed", 1.2, []),
        ("postgres_killed", 1.3, ["answers_slow"]),
        # nginx gives the process up after 1.5 s, and another one answers.
        ("api_stopped", 1.52, []),
        ("api_stopped", 2.8, ["answers_slow"]),
        ("api_killed", 1.52, ["answers_slow"]),
    ],
)
def test_an_answer_past_its_deadline_misses_the_goal(fault: str, took_s: float, missed: list[str]) -> None:
    verdict = answered_after(took_s, [200], fault)
    assert verdict.examples.get("missed", []) == missed
    assert verdict.met is not bool(missed)


def test_an_unanswered_try_misses_the_goal_unless_a_retry_was_answered() -> None:
    retried = answered_after(0.1, [0, 200], "api_stopped")
    assert (retried.tries_unanswered, retried.answers_never, retried.met) == (1, 0, True)
    never = answered_after(0.1, [0, 0, 0], "api_stopped")
    assert (never.answers_never, never.examples["missed"]) == (1, ["answers_never"])


def test_each_fault_of_an_engine_needs_enough_answers_by_itself() -> None:
    def runs(away: int, poor: str = "") -> list[Verdict]:
        return [
            Verdict(
                fault, pods, answered=300, answered_while_engine_away=AWAY_MIN - 1 if fault == poor else away
            )
            for pods in PODS
            for fault in FAULTS
        ]

    assert is_enough(runs(AWAY_MIN))
    assert not is_enough(runs(10 * AWAY_MIN, poor="both_killed")), "others do not make up for it"
    assert is_enough(runs(AWAY_MIN, poor="api_killed")), "it takes none away"
    assert not is_enough(runs(AWAY_MIN)[1:]), "a fault was not run"


def test_a_dial_rings_until_it_is_answered_or_ended() -> None:
    ringing, answered, busy = a_dial(), a_dial(), a_dial()
    ringing.answered_at = ringing.ended_at = answered.ended_at = busy.answered_at = None
    assert [rings(dial) for dial in (ringing, answered, busy)] == [True, False, False]


def test_faults_of_an_engine_are_repeated_until_enough_calls_answered_meanwhile() -> None:
    asked = scenario.Extent(300, 60, 870.0)
    assert asked.of(takes_engine_away=True, patience=2.0) == scenario.Extent(300, 60, 1740.0)
    assert asked.of(takes_engine_away=False, patience=1.0) == scenario.Extent(300, 0, 870.0)
    assert [name for name, case in FAULTS.items() if case.patience > 1] == ["postgres_killed", "both_killed"]


def test_a_stored_run_is_judged_by_the_current_goals() -> None:
    kept = {
        "fault": "postgres_killed",
        "pods": 40,
        "answered": 1219,
        "answered_while_engine_away": 42,
        "met": True,
    }
    again = judged_again(kept | {"commit": "abc"})
    assert (again["met"], again["examples"], again["commit"]) == (False, {"missed": ["too_few_away"]}, "abc")
    assert judged_again(kept | {"answered_while_engine_away": AWAY_MIN})["met"] is True
    broke = {"fault": "both_killed", "pods": 40, "met": False, "examples": {"broke": ["no carrier"]}}
    assert judged_again(broke) == broke


@pytest.mark.parametrize(("ringing", "unexcused"), [(0, 1), (1, 0)])
def test_a_pod_reserved_for_a_ringing_phone_is_not_free_for_exotels_callers(
    ringing: int, unexcused: int
) -> None:
    caller = replace(an_answer(a_dial("c9", from_=EXOTEL)), direction="inbound", streams=[])
    rung = [replace(a_dial("c1", at_s=100.0), answered_at=108.0, ended_at=118.0)][:ringing]
    answers = [an_answer(dial) for dial in rung]
    pods = [a_pod(calls=[served(span=Span(108.0, 118.0))] if ringing else [])]
    verdict = a_verdict(rung, [*answers, caller], pods)
    assert (verdict.exotel_without_agent, verdict.exotel_without_agent_unexcused) == (1, unexcused)


@pytest.mark.parametrize(
    ("from_", "agent", "wrong"), [(EXOTEL, "unknown", 0), (EXOTEL, "joined", 1), (TWILIO, "unknown", 1)]
)
def test_an_unknown_agent_is_right_only_for_an_excused_call_of_exotel(
    from_: str, agent: str, wrong: int
) -> None:
    dial = a_dial(from_=from_)
    verdict = a_verdict([dial], [an_answer(dial)], [a_pod(died_s=101.0)], agent=agent)
    assert (verdict.exotel_agent_unknown, verdict.leads_recorded_wrongly) == (1 - wrong, wrong)

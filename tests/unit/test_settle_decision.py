"""What becomes of a lead after an attempt: one verdict from all witnesses, one budget per lead."""

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.support.leads.policy import after_call, after_facts, attempt_of
from trunkline.leads.outcomes import (
    after_cancellation,
    after_refusal,
    after_throttling,
    after_unexplained,
    agent_of,
    verdict,
)
from trunkline.leads.retries import Retries, RetryRule, legacy, rule_words
from trunkline.model import Agent, Budget, CallFacts, Finish, LeadDecision, Outcome, Retry
from trunkline.states import AttemptState
from trunkline.store.attempts import CallAllocation, ReportedOutcome
from trunkline.value import replace

NOW = datetime(2025, 6, 3, 10, 0, tzinfo=UTC)
# A report without a disposition of the agent's own.
REPORTED = ReportedOutcome(None, False, None)


def call(
    answered_at: datetime | None = NOW,
    end_reason: str | None = "completed",
    duration_s: int | None = 60,
    agent: Agent | None = None,
    is_machine: bool | None = None,
) -> CallFacts:
    return CallFacts(
        AttemptState.ENDED,
        answered_at=answered_at,
        end_reason=end_reason,
        duration_s=duration_s,
        agent=agent,
        is_machine=is_machine,
    )


def report(
    disposition: str | None, *, opt_out: bool = False, callback_at: datetime | None = None
) -> ReportedOutcome:
    return ReportedOutcome(disposition, opt_out, callback_at)


@pytest.mark.parametrize(
    ("end_reason", "reason"),
    [
        ("no_answer", "NO_ANSWER"),
        ("failed", "FAILED"),
        ("canceled", "CANCELED"),
        ("timeout", "TIMEOUT"),
        (None, "FAILED"),
        ("a word that the carrier learnt lately", "FAILED"),
    ],
)
def test_an_unanswered_calls_verdict_has_its_reason(end_reason: str | None, reason: str) -> None:
    found = verdict(call(None, end_reason))
    assert (found.outcome, found.reason) == (Outcome.NO_ANSWER, reason)


def test_a_busy_callee_is_the_outcome_busy() -> None:
    assert verdict(call(None, "busy")) == Finish(Outcome.BUSY)


class AgentEvidence(NamedTuple):
    is_external: bool = False
    has_joined: bool = False
    given: bool | None = None
    stream_began: bool | None = None
    is_unnamed: bool = False

    @property
    def agent(self) -> Agent:
        """As the rules conclude it, from an attempt and its facts."""
        unnamed_at = NOW + timedelta(seconds=30) if self.is_unnamed else None
        allocation = CallAllocation(NOW, self.has_joined, unnamed_at)
        attempt = attempt_of(
            Budget(1, 9, 0), carrier="vapi" if self.is_external else "twilio", allocation=allocation
        )
        facts = replace(call(), ended_at=NOW + timedelta(seconds=60), stream_began=self.stream_began)
        return agent_of(attempt, replace(facts, agent_joined=self.given))


def _who_took_it(seen: AgentEvidence) -> Agent:
    """The table, written down once more, from the strongest witness to the weakest."""
    match seen:
        case AgentEvidence(is_external=True) | AgentEvidence(given=True):
            return Agent.EXTERNAL
        case AgentEvidence(has_joined=True):
            return Agent.JOINED
        case AgentEvidence(given=False):
            return Agent.NONE
        case AgentEvidence(stream_began=True):
            return Agent.JOINED
        case AgentEvidence(stream_began=False) | AgentEvidence(is_unnamed=True):
            return Agent.NONE
        case _:
            return Agent.UNKNOWN


EVERYTHING_SEEN = [
    AgentEvidence(*seen)
    for seen in product((True, False), (True, False), (None, True, False), (None, True, False), (True, False))
]


@pytest.mark.parametrize("seen", EVERYTHING_SEEN)
def test_the_agent_state_follows_from_every_combination_of_evidence(seen: AgentEvidence) -> None:
    agent = seen.agent
    assert agent is _who_took_it(seen)
    is_ours = seen.has_joined or (seen.stream_began is True and seen.given is not False)
    no_trace = seen.given is False or seen.stream_began is False or seen.is_unnamed
    assert agent is not Agent.NONE or no_trace, "nobody is rung again without a witness"
    assert agent is not Agent.JOINED or is_ours
    outcome = verdict(call(agent=agent)).outcome
    assert outcome is (Outcome.NO_AGENT if agent is Agent.NONE else Outcome.ANSWERED)


def test_without_evidence_the_agent_is_unknown_and_the_lead_is_finished() -> None:
    unknown = call(agent=AgentEvidence().agent)
    assert after_facts(unknown, None, Budget(1, 9, 0)) == Finish(Outcome.ANSWERED, None)


@pytest.mark.parametrize(
    ("seen", "reported", "outcome"),
    [
        (call(), None, Outcome.ANSWERED),
        (call(None), None, Outcome.ANSWERED),
        (call(NOW, None), None, Outcome.ANSWERED),
        (call(), report("Transferred"), Outcome.TRANSFERRED),
        (call(is_machine=True), None, Outcome.VOICEMAIL),
        (call(agent=Agent.NONE), None, Outcome.NO_AGENT),
        (call(agent=Agent.UNKNOWN), None, Outcome.ANSWERED),
        (call(agent=Agent.NONE, is_machine=True), None, Outcome.VOICEMAIL),
        (call(duration_s=2, agent=Agent.JOINED), REPORTED, Outcome.EARLY_HANGUP),
        (call(duration_s=2, agent=Agent.JOINED), None, Outcome.ANSWERED),
        (call(duration_s=2), None, Outcome.ANSWERED),
        (call(is_machine=True), report("Transferred"), Outcome.TRANSFERRED),
    ],
)
def test_an_answered_calls_outcome_comes_from_the_best_evidence(
    seen: CallFacts, reported: ReportedOutcome | None, outcome: Outcome
) -> None:
    assert verdict(seen, reported).outcome is outcome


def test_the_agents_own_disposition_is_kept_as_the_word() -> None:
    found = verdict(call(), report("promise to pay!"))
    assert (found.outcome, found.word) == (Outcome.ANSWERED, "PROMISE_TO_PAY")


def test_an_agents_disposition_does_not_override_an_unanswered_call() -> None:
    assert verdict(call(None, "busy"), report("SOLD")).outcome is Outcome.BUSY


def test_a_disposition_no_agent_does_not_change_an_answered_call() -> None:
    assert verdict(call(), report("no agent")) == Finish(Outcome.ANSWERED, "NO_AGENT")


@pytest.mark.parametrize(("attempt", "delay_s"), [(1, 60), (2, 120), (3, 240), (10, 60 * 2**9)])
def test_the_retry_delay_doubles_with_every_attempt(attempt: int, delay_s: float) -> None:
    assert after_call(None, "busy", Budget(attempt, 20, 0)) == Retry(delay_s)


def test_a_lead_at_max_attempts_is_finished() -> None:
    assert after_call(None, "busy", Budget(3, 3, 0)) == Finish(Outcome.BUSY, None)


def test_a_retry_rule_sets_delays_or_ends_the_lead_by_reason_before_outcome() -> None:
    rules = Retries(
        by_outcome={
            "NO_ANSWER": RetryRule(delays_s=(10, 20)),
            "BUSY": RetryRule(retry=False),
            "PROMISE_TO_PAY": RetryRule(delays_s=(5,)),
        }
    )
    assert after_call(None, "no_answer", Budget(1, 9, 0), rules) == Retry(10)
    assert after_call(None, "no_answer", Budget(5, 9, 0), rules) == Retry(20)
    assert after_call(None, "busy", Budget(1, 9, 0), rules) == Finish(Outcome.BUSY, None)
    assert after_facts(call(), report("promise to pay"), Budget(1, 9, 0), rules) == Retry(5)


NO_AGENT = call(agent=Agent.NONE)
AGAIN = {"counted": False, "no_agent": True}


def test_a_lead_without_an_agent_is_retried_twice_uncounted_and_then_finished() -> None:
    assert after_facts(NO_AGENT, None, Budget(1, 1, 0, 0)) == Retry(300, **AGAIN)
    assert after_facts(NO_AGENT, None, Budget(1, 1, 0, 1)) == Retry(3600, **AGAIN)
    assert after_facts(NO_AGENT, None, Budget(1, 9, 0, 2)) == Finish(Outcome.NO_AGENT, None)


def test_a_retry_rule_for_no_agent_changes_delays_but_adds_no_retry() -> None:
    never = Retries(by_outcome={"NO_AGENT": RetryRule(retry=False)})
    assert after_facts(NO_AGENT, None, Budget(1, 9, 0), never) == Finish(Outcome.NO_AGENT, None)
    sooner = Retries(by_outcome={"NO_AGENT": RetryRule(delays_s=(10, 20, 30))})
    assert after_facts(NO_AGENT, None, Budget(1, 9, 0, 0), sooner) == Retry(10, **AGAIN)
    assert after_facts(NO_AGENT, None, Budget(1, 9, 0, 1), sooner) == Retry(20, **AGAIN)
    assert after_facts(NO_AGENT, None, Budget(1, 9, 0, 2), sooner) == Finish(Outcome.NO_AGENT, None)


# The words that outcomes had before


def test_legacy_returns_the_old_outcome_and_reason() -> None:
    assert legacy("NO_AGENT", None) == ("BUSY", "NO_AGENT")
    assert legacy("BUSY", None) == ("NO_ANSWER", "BUSY")
    assert legacy("NO_ANSWER", "FAILED") == ("NO_ANSWER", "FAILED")
    assert legacy(None, None) == (None, None)


def test_retry_rules_are_looked_up_by_new_and_then_old_outcome_names() -> None:
    assert rule_words("BUSY", None) == ("BUSY", "NO_ANSWER")
    assert rule_words("NO_AGENT", None) == ("NO_AGENT", "BUSY")
    assert rule_words("NO_ANSWER", "FAILED") == ("FAILED", "NO_ANSWER")
    assert rule_words("NO_ANSWER", "NO_ANSWER") == ("NO_ANSWER",)


def test_retry_rules_with_old_outcome_names_keep_their_meaning() -> None:
    """NO_ANSWER was the outcome of an engaged line, BUSY its reason, and the outcome of a call without an agent."""
    unanswered = Retries(by_outcome={"NO_ANSWER": RetryRule(delays_s=(7,))})
    assert after_call(None, "busy", Budget(1, 9, 0), unanswered) == Retry(7)
    both = Retries(by_outcome={"NO_ANSWER": RetryRule(retry=False), "BUSY": RetryRule(delays_s=(9,))})
    assert after_call(None, "busy", Budget(1, 9, 0), both) == Retry(9)
    assert after_call(None, "no_answer", Budget(1, 9, 0), both) == Finish(Outcome.NO_ANSWER, "NO_ANSWER")
    assert after_facts(NO_AGENT, None, Budget(1, 9, 0), both) == Retry(300, **AGAIN), "its own waits stay"
    ended = Retries(by_outcome={"BUSY": RetryRule(retry=False)})
    assert after_facts(NO_AGENT, None, Budget(1, 9, 0), ended) == Finish(Outcome.NO_AGENT, None)
    told_apart = Retries(by_outcome={"BUSY": RetryRule(retry=False), "NO_AGENT": RetryRule()})
    assert after_facts(NO_AGENT, None, Budget(1, 9, 0), told_apart) == Retry(300, **AGAIN)


def test_an_opt_out_finishes_the_lead() -> None:
    refused = report("BUSY", opt_out=True, callback_at=NOW + timedelta(hours=1))
    assert after_facts(call(), refused, Budget(1, 9, 0), now=NOW) == Finish(Outcome.BUSY, None)


def test_a_callback_is_a_retry_at_its_time_within_the_budget() -> None:
    asked = report("LATER", callback_at=NOW + timedelta(hours=2))
    assert after_facts(call(), asked, Budget(1, 2, 0), now=NOW) == Retry(7200)
    assert after_facts(call(), asked, Budget(2, 2, 0), now=NOW) == Finish(Outcome.ANSWERED, None, "LATER")


@pytest.mark.parametrize("wrong", [timedelta(seconds=-1), timedelta(days=-365), timedelta(days=367)])
def test_an_impossible_callback_time_is_ignored(wrong: timedelta) -> None:
    """Neither at once, nor in a hundred years: the usual rule decides."""
    asked = report("LATER", callback_at=NOW + wrong)
    assert after_facts(call(), asked, Budget(1, 2, 0), now=NOW) == Finish(Outcome.ANSWERED, None, "LATER")


def test_fault_23_carrier_refusals_end_a_lead_without_using_its_attempts() -> None:
    assert after_refusal("21211", Budget(1, 1, 0)) == Retry(60, carrier_error=True, counted=False)
    assert after_refusal("21211", Budget(1, 1, 1)) == Retry(120, carrier_error=True, counted=False)
    assert after_refusal("21211", Budget(1, 1, 2)) == Finish(Outcome.CARRIER_ERROR, "21211")


def test_a_throttled_request_costs_nothing() -> None:
    assert after_throttling(7) == Retry(7, counted=False)
    assert after_throttling(0).delay_s == 1  # type: ignore[union-attr]


maybe = st.none() | st.booleans()
some_facts = st.builds(
    call,
    st.none() | st.just(NOW),
    st.none() | st.sampled_from(["completed", "busy", "no_answer", "failed", "canceled", "???"]),
    st.none() | st.integers(0, 3600),
    st.none() | st.sampled_from(Agent),
    maybe,
)
some_reports = st.none() | st.builds(
    ReportedOutcome,
    st.none() | st.text(max_size=20),
    st.booleans(),
    st.none() | st.just(NOW + timedelta(days=1)),
)
some_rules = st.builds(
    Retries,
    base_s=st.floats(1, 86_400),
    factor=st.floats(1, 10),
    by_outcome=st.dictionaries(
        st.sampled_from(["NO_ANSWER", "BUSY", "NO_AGENT", "VOICEMAIL", "ANSWERED", "EARLY_HANGUP"]),
        st.builds(
            RetryRule, retry=st.booleans(), delays_s=st.lists(st.floats(1, 1e6), max_size=3).map(tuple)
        ),
    ),
)


@given(some_facts, some_reports, st.integers(1, 25), st.integers(1, 20), st.integers(0, 4), some_rules)
def test_no_retry_rules_exceed_the_attempt_budget(
    seen: CallFacts,
    reported: ReportedOutcome | None,
    attempt: int,
    max_attempts: int,
    no_agents: int,
    rules: Retries,
) -> None:
    decision = after_facts(seen, reported, Budget(attempt, max_attempts, 0, no_agents), rules, NOW)
    if isinstance(decision, Retry) and decision.no_agent:
        assert no_agents < 2
        assert not decision.counted
        return
    if attempt >= max_attempts:
        assert isinstance(decision, Finish)
    if isinstance(decision, Retry):
        assert decision.counted
        assert 1 <= decision.delay_s <= rules.delay_max_s


@given(some_rules, st.integers(1, 20))
def test_every_chain_of_failures_ends(rules: Retries, max_attempts: int) -> None:
    attempts, errors = 1, 0
    for turn in range(max_attempts + rules.carrier_errors_max + 1):
        decision = (
            after_refusal("x", Budget(attempts, max_attempts, errors), rules)
            if turn % 2
            else after_call(None, "no_answer", Budget(attempts, max_attempts, errors), rules)
        )
        if isinstance(decision, Finish):
            return
        attempts += int(decision.counted)
        errors += int(decision.carrier_error)
    raise AssertionError("it never ended")


@given(some_facts, some_reports)
def test_every_verdict_is_a_printable_upper_case_word(
    seen: CallFacts, reported: ReportedOutcome | None
) -> None:
    found = verdict(seen, reported)
    word = found.word or found.outcome.value
    assert 0 < len(word) <= 60
    assert word.isprintable()
    assert word == word.upper()


@pytest.mark.parametrize(
    "wrong", [{"base_s": 0}, {"factor": 0.5}, {"by_outcome": {"BUSY": {"delays_s": [0]}}}]
)
def test_invalid_retry_rules_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Retries.model_validate(wrong)


@pytest.mark.parametrize("retries", [Retries(), Retries(base_s=1, factor=1), Retries(base_s=7200, factor=1)])
def test_unexplained_refusals_back_off_to_at_least_an_hour_under_any_policy(retries: Retries) -> None:
    """The cause is unknown: the lead is retried at no cost, and less often each time."""
    found = [
        after_unexplained("79999", Budget(1, 3, 0), retries, others_were_accepted=False, times=n)
        for n in range(1, 20)
    ]
    delays_s = [each.delay_s for each in found if isinstance(each, Retry) and not each.counted]
    assert len(delays_s) == len(found)
    assert delays_s == sorted(delays_s)
    assert delays_s[-1] == max(3600, retries.base_s)


ABORTED = Finish(Outcome.ABORTED, "sold out")
ANSWERED = Finish(Outcome.ANSWERED, None)
NO_ANSWER = Finish(Outcome.NO_ANSWER, "NO_ANSWER")


@pytest.mark.parametrize(
    ("decision", "hang_up", "becomes"),
    [
        (Retry(60), False, ABORTED),
        (Retry(60, carrier_error=True, counted=False), False, ABORTED),
        (NO_ANSWER, False, NO_ANSWER),
        (ANSWERED, False, ANSWERED),
        (Retry(60), True, ABORTED),
        (NO_ANSWER, True, ABORTED),
        (ANSWERED, True, ABORTED),
        (Finish(Outcome.ANSWERED, None, "ECHOED"), True, ABORTED),
        (Finish(Outcome.CARRIER_ERROR, "21610"), True, ABORTED),
    ],
)
def test_a_cancelled_lead_is_not_called_again_and_is_aborted_where_its_call_was_cut_short(
    decision: LeadDecision, hang_up: bool, becomes: LeadDecision
) -> None:
    assert after_cancellation(decision, "sold out", hang_up=hang_up) == becomes

"""What became of people, from the carrier's ledger and the pods' own records. What the platform recorded is judged by
them, never believed."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.agents import scenario
from bench.agents.faults import Strike
from bench.agents.records import Answer, Attempt, Caller, Lead, PodRecord, Served, Span
from trunkline.telephony.simulator.ledger import Dial, double_dials, over_capacity

RESUMED_WITHIN_S = 6.0
DIALS_AGAIN_WITHIN_S = 5.0
DIALS_PER_S_WITHOUT_VALKEY = 1.0
# A pod that was free for less may have been on its way to somebody.
FREE_S = 1.0
# The carrier's clock and ours are one; its request and an engine's end may cross.
CROSSING_S = 1.2
DOCUMENT_WITHIN_S = 1.2
EXAMPLES_MAX = 12
_LINE = re.compile(r'^([\d.]+) ([\d.]+) (\d+) (\S+(?:, \S+)*) "([^"]*)" /webhooks/(\w+)/(\w+)\?(\S*)$')
# What is told to us without asking what to do.
_NOT_ASKED = frozenset({"status", "recording", "machine", "stream"})


@dataclass(frozen=True, slots=True)
class Evidence:
    dials: Sequence[Dial]
    callers: Sequence[Caller]
    pods: Sequence[PodRecord]
    answers: Sequence[Answer]
    strikes: Sequence[Strike]
    attempts: Sequence[Attempt]
    leads: Sequence[Lead]
    # Attempts that were still without an end when the wait for them was over.
    unsettled: int


@dataclass
class Verdict:
    fault: str
    pods: int
    dials: int = 0
    answered: int = 0
    answered_while_engine_away: int = 0
    without_agent: int = 0
    without_agent_while_one_was_free: int = 0
    two_calls_on_exclusive_pod: int = 0
    answers: int = 0
    answers_not_documents: int = 0
    answers_slow: int = 0
    answer_max_ms: float = 0.0
    leads_recorded_wrongly: int = 0
    callers: int = 0
    callers_without_agent: int = 0
    people_at_killed_pods: int = 0
    people_dropped: int = 0
    exotel_answered: int = 0
    exotel_without_agent: int = 0
    exotel_without_agent_unexcused: int = 0
    double_dials: int = 0
    numbers_over: int = 0
    strikes: int = 0
    dials_again_s: float = 0.0
    dials_per_s_without_valkey: float | None = None
    dials_per_s: float = 0.0
    met: bool = False
    # For whoever looks for the reason: at most a handful of each.
    examples: dict[str, list[str]] = field(default_factory=dict)

    def line(self) -> dict[str, object]:
        return asdict(self)


def judge(fault: str, pods: int, evidence: Evidence) -> Verdict:
    seen = Seen(evidence)
    verdict = Verdict(fault, pods)
    _count_people(verdict, seen)
    _count_pods(verdict, seen)
    _count_answers(verdict, evidence)
    _count_dials(verdict, evidence)
    wrong = [*_recorded_wrongly(seen)]
    verdict.leads_recorded_wrongly = len(wrong) + evidence.unsettled
    _example(verdict, "recorded", wrong)
    verdict.met = not _missed(verdict)
    _example(verdict, "missed", _missed(verdict))
    return verdict


class Seen:
    """The evidence by call, by person and by attempt."""

    def __init__(self, evidence: Evidence):
        self.evidence = evidence
        self.served: dict[str, list[Served]] = {}
        for pod in evidence.pods:
            for call in pod.calls:
                self.served.setdefault(call.call, []).append(call)
        for calls in self.served.values():
            calls.sort(key=lambda call: call.span.began_s)
        self.carrier_of = {number: carrier for number, (carrier, _) in scenario.NUMBERS.items()}
        self.merchant_of = {lead.phone: lead.merchant for lead in evidence.leads}
        self.outbound = [dial for dial in evidence.dials if dial.direction == "outbound"]
        self._nth: dict[str, int] = {}
        called: Counter[str] = Counter()
        for dial in sorted(evidence.dials, key=lambda dial: dial.requested_at):
            self._nth[dial.call_id] = called[_person(dial)]
            called[_person(dial)] += 1

    def talk_s(self, dial: Dial) -> float:
        """For how long this person wanted to talk."""
        return scenario.talk_s(_person(dial), self._nth[dial.call_id])

    def is_exotel(self, dial: Dial) -> bool:
        return self.carrier_of.get(dial.from_) == "exotel"

    def was_free(self, merchant: str, span: Span) -> bool:
        """Whether a pod that this merchant reaches stood free for a second while somebody waited."""
        reach = {"gold", "standard"} if merchant == scenario.GOLD else {"standard"}
        moment_s, end_s = span.began_s, min(span.ended_s, span.began_s + 60.0)
        reachable = [pod for pod in self.evidence.pods if pod.tier in reach]
        while moment_s + FREE_S <= end_s:
            for pod in reachable:
                if (
                    pod.is_free(moment_s)
                    and pod.is_free(moment_s + FREE_S / 2)
                    and pod.is_free(moment_s + FREE_S)
                ):
                    return True
            moment_s += FREE_S / 2
        return False

    def is_excused(self, dial: Dial) -> bool:
        """Exotel's: an engine was away when the person answered, or a pod was lost while it rang."""
        assert dial.answered_at is not None
        answered_s = dial.answered_at
        near = Span(answered_s - CROSSING_S, answered_s + CROSSING_S)
        for strike in self.evidence.strikes:
            if strike.engines and strike.span.began_s < near.ended_s and near.began_s < strike.span.ended_s:
                return True
        return any(
            dial.requested_at <= moment_s <= answered_s + RESUMED_WITHIN_S
            for pod in self.evidence.pods
            for moment_s in _losses(pod)
        ) or any(span.has(answered_s) for pod in self.evidence.pods for span in pod.away)


def _person(dial: Dial) -> str:
    return dial.to if dial.direction == "outbound" else dial.from_


def _losses(pod: PodRecord) -> Iterator[float]:
    if pod.alive.ended_s < math.inf:
        yield pod.alive.ended_s
    for span in pod.away:
        yield span.began_s


def _count_people(verdict: Verdict, seen: Seen) -> None:
    evidence = seen.evidence
    for dial in seen.outbound:
        verdict.dials += 1
        if dial.answered_at is None:
            continue
        verdict.answered += 1
        verdict.answered_while_engine_away += any(
            strike.engines and strike.span.has(dial.answered_at) for strike in evidence.strikes
        )
        is_exotel, has_agent = seen.is_exotel(dial), dial.call_id in seen.served
        verdict.exotel_answered += is_exotel
        if has_agent:
            continue
        if is_exotel:
            verdict.exotel_without_agent += 1
            verdict.exotel_without_agent_unexcused += not seen.is_excused(dial)
            continue
        verdict.without_agent += 1
        waited = Span(dial.answered_at, dial.ended_at or math.inf)
        is_free = seen.was_free(seen.merchant_of.get(dial.to, ""), waited)
        verdict.without_agent_while_one_was_free += is_free
        _example(verdict, "without_agent", [_told(dial)])
    for caller in evidence.callers:
        verdict.callers += 1
        if caller.carrier != "exotel" and caller.call not in seen.served:
            verdict.callers_without_agent += 1
            _example(verdict, "callers", [f"{caller.call} at {caller.at_s:.1f} ended {caller.reason}"])


def _told(dial: Dial) -> str:
    assert dial.answered_at is not None
    lasted_s = (dial.ended_at or math.nan) - dial.answered_at
    return f"{dial.call_id} answered at {dial.answered_at:.1f} for {lasted_s:.1f} s, stream {dial.stream_url}"


def _count_pods(verdict: Verdict, seen: Seen) -> None:
    by_call = {dial.call_id: dial for dial in seen.evidence.dials}
    lives: dict[str, list[Served]] = {}
    for pod in seen.evidence.pods:
        lives.setdefault(pod.name, []).extend(pod.calls)
    for calls in lives.values():
        calls.sort(key=lambda call: call.span.began_s)
        for earlier, later in itertools.pairwise(calls):
            if later.span.began_s < earlier.span.ended_s:
                verdict.two_calls_on_exclusive_pod += 1
                _example(verdict, "two_calls", [f"{earlier.pod}: {earlier.call} and {later.call}"])
    for call, served in seen.served.items():
        dial = by_call.get(call)
        if dial is None or (dial.direction == "outbound" and seen.is_exotel(dial)):
            continue
        if dial.direction == "inbound" and scenario.INBOUND_NUMBERS.get(dial.to) == "exotel":
            continue
        for n, stay in enumerate(served):
            if not stay.was_killed:
                continue
            verdict.people_at_killed_pods += 1
            if _was_dropped(stay, served[n + 1 :], dial, seen.talk_s(dial)):
                verdict.people_dropped += 1
                _example(verdict, "dropped", [f"{call} at {stay.pod} killed at {stay.span.ended_s:.1f}"])


def _was_dropped(stay: Served, later: Sequence[Served], dial: Dial, talk_s: float) -> bool:
    """Whoever wanted to hang up at about that time did so; everybody else talks to another agent soon."""
    died_s, left_s = stay.span.ended_s, dial.ended_at or math.inf
    if later and later[0].span.began_s <= died_s + RESUMED_WITHIN_S:
        return False
    wanted_s = stay.span.began_s + talk_s
    went_by_themselves = left_s >= wanted_s - 0.5
    return not (went_by_themselves and wanted_s - died_s < RESUMED_WITHIN_S)


def _count_answers(verdict: Verdict, evidence: Evidence) -> None:
    verdict.answers = len(evidence.answers)
    bad = [answer for answer in evidence.answers if not answer.is_document]
    verdict.answers_not_documents = len(bad)
    verdict.answers_slow = sum(answer.took_s > DOCUMENT_WITHIN_S for answer in evidence.answers)
    verdict.answer_max_ms = round(1000 * max((answer.took_s for answer in evidence.answers), default=0.0))
    told = [
        f"{answer.carrier} {answer.status} at {answer.at_s:.1f} in {answer.took_s:.2f} s" for answer in bad
    ]
    _example(verdict, "not_documents", told)


def _count_dials(verdict: Verdict, evidence: Evidence) -> None:
    limits = {number: channels for number, (_, channels) in scenario.NUMBERS.items()}
    verdict.double_dials = len(double_dials(evidence.dials))
    verdict.numbers_over = len(over_capacity(evidence.dials, limits))
    verdict.strikes = len(evidence.strikes)
    moments = sorted(dial.requested_at for dial in evidence.dials if dial.direction == "outbound")
    if len(moments) > 1:
        verdict.dials_per_s = round(len(moments) / (moments[-1] - moments[0]), 2)
    gaps = [_first_after(moments, strike.span.ended_s) for strike in evidence.strikes]
    verdict.dials_again_s = round(max(gaps, default=0.0), 1)
    without = [strike.span for strike in evidence.strikes if strike.engines == {"valkey"}]
    if without:
        dialled = sum(span.has(moment_s) for span in without for moment_s in moments)
        lasted_s = sum(span.ended_s - span.began_s for span in without)
        verdict.dials_per_s_without_valkey = round(dialled / lasted_s, 2)


def _first_after(moments: Iterable[float], healed_s: float) -> float:
    return next((moment_s - healed_s for moment_s in moments if moment_s >= healed_s), 60.0)


def _recorded_wrongly(seen: Seen) -> Iterator[str]:
    attempts = {attempt.attempt: attempt for attempt in seen.evidence.attempts}
    dialled: dict[str, list[Dial]] = {}
    for dial in seen.outbound:
        dialled.setdefault(dial.to, []).append(dial)
        attempt = attempts.get(dial.attempt or "")
        if attempt is None:
            yield f"{dial.call_id} was dialled and no attempt is recorded"
        elif attempt.state in ("rejected", "absent", "unknown"):
            yield f"{dial.call_id} was dialled and its attempt is {attempt.state}"
        elif attempt.state == "ended" and attempt.was_answered != (dial.answered_at is not None):
            yield f"{dial.call_id}: {dial.status}, recorded as {attempt.end_reason} {attempt.was_answered}"
    for lead in seen.evidence.leads:
        dials = sorted(dialled.get(lead.phone, []), key=lambda dial: dial.requested_at)
        if (said := _wrong(lead, dials[-1] if dials else None, seen)) is not None:
            yield said


def _wrong(lead: Lead, last: Dial | None, seen: Seen) -> str | None:
    recorded = f"{lead.status} {lead.outcome} ({lead.reason})"
    if last is None:
        return None if lead.outcome is None else f"lead {lead.lead} was never dialled: {recorded}"
    if last.ended_at is None:
        return None  # still talking when the run was cut off; counted as unsettled
    wanted = _wanted(last, has_agent=last.call_id in seen.served)
    if lead.outcome in wanted or (lead.outcome, lead.reason) in wanted:
        return None
    return f"{last.call_id} {last.status}, agent {last.call_id in seen.served}: {recorded}"


# An engaged line was NO_ANSWER (BUSY) in the source's words, and an answer without an agent BUSY (NO_AGENT).
_ANSWERED: Mapping[bool, frozenset[object]] = {
    True: frozenset({"ANSWERED"}),
    False: frozenset({None, "NO_AGENT", ("BUSY", "NO_AGENT")}),
}
_UNANSWERED: Mapping[str, frozenset[object]] = {
    "busy": frozenset({"BUSY", ("NO_ANSWER", "BUSY"), None}),
    "no_answer": frozenset({"NO_ANSWER", None}),
    "canceled": frozenset({"NO_ANSWER", "ABORTED", None}),
    "failed": frozenset({"NO_ANSWER", "CARRIER_ERROR", None}),
}


def _wanted(dial: Dial, *, has_agent: bool) -> frozenset[object]:
    """Outcomes that fit; None is a lead that comes again."""
    if dial.answered_at is not None:
        return _ANSWERED[has_agent]
    return _UNANSWERED.get(dial.status, frozenset({None}))


def _missed(verdict: Verdict) -> list[str]:
    """Which of the goals; none is what we want."""
    zero = (
        "without_agent_while_one_was_free",
        "two_calls_on_exclusive_pod",
        "answers_not_documents",
        "leads_recorded_wrongly",
        "callers_without_agent",
        "people_dropped",
        "exotel_without_agent_unexcused",
        "double_dials",
        "numbers_over",
    )
    # A slot is kept for everybody who rings, so nobody waits for one even where there are too few for all channels.
    more = ("without_agent",) if verdict.pods < sum(n for _, n in scenario.NUMBERS.values()) else ()
    missed = [name for name in (*zero, *more) if getattr(verdict, name)]
    if verdict.dials_again_s > DIALS_AGAIN_WITHIN_S:
        missed.append("dials_again_s")
    rate = verdict.dials_per_s_without_valkey
    # With 20 pods that are all in calls no more can be dialled than end.
    if rate is not None and rate < min(DIALS_PER_S_WITHOUT_VALKEY, 0.8 * verdict.dials_per_s):
        missed.append("dials_per_s_without_valkey")
    return missed


def _example(verdict: Verdict, name: str, told: Iterable[str]) -> None:
    kept = verdict.examples.setdefault(name, [])
    kept += list(told)[: EXAMPLES_MAX - len(kept)]
    if not kept:
        del verdict.examples[name]


def read_answers(log: Path) -> list[Answer]:
    """What nginx told the carrier each time it asked what to do with a call."""
    found = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        match = _LINE.match(line)
        if match is None or match[7] in _NOT_ASKED:
            continue
        status, carrier, media_type = int(match[3]), match[6], match[5]
        took_s = float(match[2])
        is_document = status == 200 and media_type.partition(";")[0] in _DOCUMENTS
        is_exotels_busy = carrier == "exotel" and status == 503
        found.append(
            Answer(carrier, float(match[1]) - took_s, took_s, status, is_document or is_exotels_busy)
        )
    return found


_DOCUMENTS = frozenset({"text/xml", "application/xml", "application/json"})


def statuses(answers: Iterable[Answer]) -> Counter[int]:
    return Counter(answer.status for answer in answers)

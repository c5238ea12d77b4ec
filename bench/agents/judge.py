"""What became of people, from the carrier's ledger and the pods' own records. What the platform recorded is judged by
them, never believed."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from urllib.parse import urlsplit

from bench.agents import scenario
from bench.agents.faults import Strike
from bench.agents.records import Attempt, Lead
from tests.support.agent.pod_records import PodRecord, Served, Span
from trunkline.telephony.simulator.answered_calls import AnsweredCall
from trunkline.telephony.simulator.ledger import Dial, double_dials, over_capacity

# A stream that is opened at a pod which is gone is given up within the carrier's 5 s.
LOST_WITHIN_S = 6.0
DIALS_AGAIN_WITHIN_S = 5.0
DIALS_PER_S_WITHOUT_VALKEY = 1.0
# A pod that was free for less may have been on its way to somebody.
FREE_S = 1.0
# The carrier's clock and ours are one; its request and an engine's end may cross.
CROSSING_S = 1.2
DOCUMENT_WITHIN_S = 1.2
# nginx waits so long for a process that stands still, and then asks another one: the answer comes, later.
STANDSTILL = "api_stopped"
ASKED_ELSEWHERE_AFTER_S = 1.5
EXAMPLES_MAX = 12


@dataclass(frozen=True, slots=True)
class Evidence:
    dials: Sequence[Dial]
    # Everybody who answered, and everybody who rang us.
    answered: Sequence[AnsweredCall]
    pods: Sequence[PodRecord]
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
    # Tries of the carrier that nobody answered; it asked again, or elsewhere.
    tries_unanswered: int = 0
    asked_at_fallback: int = 0
    # Calls whose last request for a document nobody answered, at whatever URL and however often it was tried.
    answers_never: int = 0
    answers_slow: int = 0
    answer_max_ms: float = 0.0
    waited_max_s: float = 0.0
    leads_recorded_wrongly: int = 0
    callers: int = 0
    callers_without_agent: int = 0
    people_at_killed_pods: int = 0
    people_dropped: int = 0
    exotel_answered: int = 0
    exotel_without_agent: int = 0
    exotel_without_agent_unexcused: int = 0
    # Of Exotel's calls without an agent, those that are recorded as answered with the agent unknown.
    exotel_agent_unknown: int = 0
    double_dials: int = 0
    numbers_over: int = 0
    strikes: int = 0
    # So many have to answer while the engine is away, where the fault takes one away.
    away_min: int = 0
    dials_again_s: float = 0.0
    dials_per_s_without_valkey: float | None = None
    dials_per_s: float = 0.0
    met: bool = False
    # For whoever looks for the reason: at most a handful of each.
    examples: dict[str, list[str]] = field(default_factory=dict)

    def line(self) -> dict[str, object]:
        return asdict(self)


def judge(fault: str, pods: int, evidence: Evidence, *, away_min: int = 0) -> Verdict:
    seen = Seen(evidence)
    verdict = Verdict(fault, pods, away_min=away_min)
    _count_people(verdict, seen)
    _count_pods(verdict, seen)
    _count_answers(verdict, evidence)
    _count_dials(verdict, evidence)
    wrong = [*_recorded_wrongly(seen)]
    verdict.exotel_agent_unknown = sum(seen.is_agent_unknown(dial) for dial in seen.outbound)
    verdict.leads_recorded_wrongly = len(wrong) + evidence.unsettled
    _example(verdict, "recorded", wrong)
    verdict.met = not missed_goals(verdict)
    _example(verdict, "missed", missed_goals(verdict))
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
        self.merchant_of = {lead.phone: lead.merchant for lead in evidence.leads}
        self.outbound = [dial for dial in evidence.dials if dial.direction == "outbound"]
        self.answered = {call.call_id: call for call in evidence.answered}
        self.attempts = {attempt.attempt: attempt for attempt in evidence.attempts}

    def has_agent(self, call_id: str) -> bool:
        """A pod says so itself."""
        return call_id in self.served

    def is_agent_unknown(self, dial: Dial) -> bool:
        """Exotel does not report streams: of one that led to a pod which had just left, nobody tells the platform. It
        says so, and does not ring the person again."""
        call, attempt = self.answered.get(dial.call_id), self.attempts.get(dial.attempt or "")
        if call is None or attempt is None or call.carrier != "exotel" or self.has_agent(dial.call_id):
            return False
        return attempt.agent == "unknown" and self.is_excused(call, dial.requested_at)

    def was_free(self, merchant: str, span: Span) -> bool:
        """Whether a pod that this merchant reaches stood free for a second while somebody waited."""
        return any(free for _, free in self._free(merchant, span))

    def was_free_for_callers(self, span: Span) -> bool:
        """Whether for a second more pods stood free than phones rang: a pod is reserved for every phone that rings."""
        return any(
            free > max(self._ringing(moment_s), self._ringing(moment_s + FREE_S))
            for moment_s, free in self._free(scenario.STANDARD, span)
        )

    def _free(self, merchant: str, span: Span) -> Iterator[tuple[float, int]]:
        """From each half second on, how many pods that this merchant reaches stood free for a whole one."""
        reach = {"gold", "standard"} if merchant == scenario.GOLD else {"standard"}
        moment_s, end_s = span.began_s, min(span.ended_s, span.began_s + 60.0)
        reachable = [pod for pod in self.evidence.pods if pod.tier in reach]
        while moment_s + FREE_S <= end_s:
            moments = (moment_s, moment_s + FREE_S / 2, moment_s + FREE_S)
            yield moment_s, sum(all(map(pod.is_free, moments)) for pod in reachable)
            moment_s += FREE_S / 2

    def _ringing(self, moment_s: float) -> int:
        """Phones that rang for the merchant whose agents callers share."""
        return sum(
            dial.requested_at <= moment_s < (dial.answered_at or dial.ended_at or math.inf)
            for dial in self.outbound
            if self.merchant_of.get(dial.to) == scenario.STANDARD
        )

    def is_excused(self, call: AnsweredCall, requested_s: float) -> bool:
        """Exotel's: an engine was away when the person answered, or their pod was lost."""
        answered_s = call.answered_at
        near = Span(answered_s - CROSSING_S, answered_s + CROSSING_S)
        for strike in self.evidence.strikes:
            if strike.engines and strike.span.began_s < near.ended_s and near.began_s < strike.span.ended_s:
                return True
        if call.streams:
            return any(not self._takes_streams(_pod_of(one.url), one.asked_at) for one in call.streams)
        if call.direction == "inbound" and self._is_any_down(answered_s):
            # No pod is kept for who rings us, and those that are left were taken or kept.
            return True
        lost = Span(requested_s - LOST_WITHIN_S, answered_s + CROSSING_S)
        return any(lost.has(moment_s) for pod in self.evidence.pods for moment_s in _losses(pod))

    def _is_any_down(self, moment_s: float) -> bool:
        """Whether a pod had died by then, and was not back under its name."""
        up = {pod.name for pod in self.evidence.pods if pod.alive.began_s <= moment_s < pod.alive.ended_s}
        return any(pod.alive.ended_s <= moment_s and pod.name not in up for pod in self.evidence.pods)

    def _takes_streams(self, pod: str, moment_s: float) -> bool:
        """Whether it lived and took streams then, and for as long as opening one may take."""
        lives = [record for record in self.evidence.pods if record.name == pod]
        return any(
            one.alive.began_s <= moment_s
            and one.alive.ended_s > moment_s + LOST_WITHIN_S
            and not any(
                away.began_s < moment_s + LOST_WITHIN_S and moment_s < away.ended_s for away in one.away
            )
            for one in lives
        )


def _pod_of(stream_url: str) -> str:
    """`ws://…/ws/pod/<pod>/<call>?…`"""
    return urlsplit(stream_url).path.split("/")[-2]


def _losses(pod: PodRecord) -> Iterator[float]:
    if pod.alive.ended_s < math.inf:
        yield pod.alive.ended_s
    for span in pod.away:
        yield span.began_s


def _count_people(verdict: Verdict, seen: Seen) -> None:
    requested_s = {dial.call_id: dial.requested_at for dial in seen.evidence.dials}
    verdict.dials = len(seen.outbound)
    for call in seen.evidence.answered:
        is_exotel, has_agent = call.carrier == "exotel", seen.has_agent(call.call_id)
        if call.direction == "inbound":
            verdict.callers += 1
        else:
            verdict.answered += 1
            verdict.exotel_answered += is_exotel
            verdict.answered_while_engine_away += any(
                strike.engines and strike.span.has(call.answered_at) for strike in seen.evidence.strikes
            )
        if has_agent:
            verdict.waited_max_s = round(max(verdict.waited_max_s, call.waited_s or 0.0), 1)
        elif is_exotel:
            verdict.exotel_without_agent += 1
            began_s = requested_s.get(call.call_id, call.answered_at)
            # Nobody keeps a slot for somebody who rings us, and with Exotel they cannot wait for one.
            was_full = call.direction == "inbound" and not seen.was_free_for_callers(_waited(call))
            if not was_full and not seen.is_excused(call, began_s):
                verdict.exotel_without_agent_unexcused += 1
                _example(verdict, "exotel", [_told(call)])
        elif call.direction == "inbound":
            verdict.callers_without_agent += 1
            _example(verdict, "callers", [_told(call)])
        else:
            verdict.without_agent += 1
            is_free = seen.was_free(seen.merchant_of.get(call.to, ""), _waited(call))
            verdict.without_agent_while_one_was_free += is_free
            _example(verdict, "without_agent", [_told(call)])


def _waited(call: AnsweredCall) -> Span:
    """Somebody who was hung up on at once would have been there a moment longer."""
    return Span(call.answered_at, max(call.ended_at or math.inf, call.answered_at + 2 * FREE_S))


def _told(call: AnsweredCall) -> str:
    """What the carrier saw, in a line."""
    lasted_s = (call.ended_at or math.nan) - call.answered_at
    documents = " ".join(f"{one.kind}:{one.said}{one.statuses}" for one in call.documents[:6])
    streams = " ".join(
        f"{one.url.rpartition('/pod/')[2][:24]}:{one.ended or 'open'}" for one in call.streams[:4]
    )
    return (
        f"{call.call_id} ({call.carrier}) answered at {call.answered_at:.1f}, ended by {call.ended_by} after "
        f"{lasted_s:.1f} s: {documents} {streams}"
    )


def _count_pods(verdict: Verdict, seen: Seen) -> None:
    """Two calls on a pod, and what became of those whose pod was killed. Every pod here is for one call at a time."""
    lives: dict[str, list[Served]] = {}
    for pod in seen.evidence.pods:
        lives.setdefault(pod.name, []).extend(pod.calls)
    for calls in lives.values():
        calls.sort(key=lambda call: call.span.began_s)
        for earlier, later in itertools.pairwise(calls):
            if later.span.began_s < earlier.span.ended_s:
                verdict.two_calls_on_exclusive_pod += 1
                _example(verdict, "two_calls", [f"{earlier.pod}: {earlier.call} and {later.call}"])
    for call in seen.evidence.answered:
        if call.carrier == "exotel":
            continue
        verdict.people_at_killed_pods += any(stay.was_killed for stay in seen.served.get(call.call_id, ()))
        if call.was_dropped:
            verdict.people_dropped += 1
            _example(verdict, "dropped", [_told(call)])


def _count_answers(verdict: Verdict, evidence: Evidence) -> None:
    asked = [document for call in evidence.answered for document in call.documents]
    verdict.answers = len(asked)
    verdict.answers_not_documents = sum(one.bad for one in asked)
    verdict.tries_unanswered = sum(one.statuses.count(0) for one in asked)
    verdict.asked_at_fallback = sum(one.is_fallback for one in asked)
    ends = [call.documents[-1].statuses for call in evidence.answered if call.documents]
    verdict.answers_never = sum(bool(statuses) and not statuses[-1] for statuses in ends)
    verdict.answers_slow = sum(one.took_s > DOCUMENT_WITHIN_S for one in asked)
    verdict.answer_max_ms = round(1000 * max((one.took_s for one in asked), default=0.0))
    bad = [_told(call) for call in evidence.answered if any(one.bad for one in call.documents)]
    _example(verdict, "not_documents", bad)


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
    dialled: dict[str, list[Dial]] = {}
    for dial in seen.outbound:
        dialled.setdefault(dial.to, []).append(dial)
        attempt = seen.attempts.get(dial.attempt or "")
        if attempt is None:
            yield f"{dial.call_id} was dialled and no attempt is recorded"
        elif attempt.state in ("rejected", "absent", "unknown"):
            yield f"{dial.call_id} was dialled and its attempt is {attempt.state}"
        elif attempt.state == "ended" and attempt.was_answered != (dial.answered_at is not None):
            yield f"{dial.call_id}: {dial.status}, recorded as {attempt.end_reason} {attempt.was_answered}"
    for lead in seen.evidence.leads:
        dials = sorted(dialled.get(lead.phone, []), key=lambda dial: dial.requested_at)
        if (wrong := _wrong(lead, dials[-1] if dials else None, seen)) is not None:
            of_lead = [one.detail for one in seen.evidence.attempts if one.lead == lead.lead]
            yield f"{wrong} {' '.join(of_lead)}"


def _wrong(lead: Lead, last: Dial | None, seen: Seen) -> str | None:
    recorded = f"{lead.status} {lead.outcome} ({lead.reason})"
    if last is None:
        return None if lead.outcome is None else f"lead {lead.lead} was never dialled: {recorded}"
    if last.ended_at is None:
        return None  # still talking when the run was cut off; counted as unsettled
    wanted = _wanted(last, has_agent=seen.has_agent(last.call_id))
    if lead.outcome in wanted or (lead.outcome, lead.reason) in wanted:
        return None
    if lead.outcome == "ANSWERED" and seen.is_agent_unknown(last):
        return None
    return f"{last.call_id} {last.status}, agent {seen.has_agent(last.call_id)}: {recorded}"


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


def missed_goals(verdict: Verdict) -> list[str]:
    """Which of the goals; none is what we want."""
    zero = (
        "without_agent_while_one_was_free",
        "two_calls_on_exclusive_pod",
        "answers_not_documents",
        "answers_never",
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
    if _is_slow(verdict):
        missed.append("answers_slow")
    if verdict.answered_while_engine_away < verdict.away_min:
        missed.append("too_few_away")
    if verdict.dials_again_s > DIALS_AGAIN_WITHIN_S:
        missed.append("dials_again_s")
    rate = verdict.dials_per_s_without_valkey
    # With 20 pods that are all in calls no more can be dialled than end.
    if rate is not None and rate < min(DIALS_PER_S_WITHOUT_VALKEY, 0.8 * verdict.dials_per_s):
        missed.append("dials_per_s_without_valkey")
    return missed


def _is_slow(verdict: Verdict) -> bool:
    if verdict.fault == STANDSTILL:
        return verdict.answer_max_ms > 1000 * (ASKED_ELSEWHERE_AFTER_S + DOCUMENT_WITHIN_S)
    return verdict.answers_slow > 0


def _example(verdict: Verdict, name: str, told: Iterable[str]) -> None:
    kept = verdict.examples.setdefault(name, [])
    kept += list(told)[: EXAMPLES_MAX - len(kept)]
    if not kept:
        del verdict.examples[name]

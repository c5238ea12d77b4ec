"""The promises as rules over evidence. Pure: a checker gets `Evidence` and yields a sentence for each violation.

I1 to I9 are those of the design. The platform's tables count only as what it promised: what truly happened is in the
carriers' ledger, in the pods' logs and in the application's own rows.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from uuid import UUID

from tests.support.agent.pod_records import PodRecord, Served
from tests.support.chaos import tenancy
from tests.support.chaos.evidence import AppRow, Evidence, LeadRow
from trunkline.states import ATTEMPT_MOVES, LEAD_MOVES, AttemptState, LeadStatus
from trunkline.telephony.simulator.answered_calls import AnsweredCall
from trunkline.telephony.simulator.ledger import Dial, double_dials

Checker = Callable[[Evidence], Iterator[str]]

# A stop, an abort and an opt-out hold from one second after the answer: calls that were committed before may still go.
IN_FORCE_AFTER_S = 1.0
# Whoever sees one of these reasons knows why nobody can say what became of the call; each raises an alarm.
ALARMING = frozenset({"call_list_unavailable", "two_candidates"})
# How leads end whose last call was answered, and was not.
ANSWERED = frozenset({"ANSWERED", "NO_AGENT", "EARLY_HANGUP", "VOICEMAIL", "TRANSFERRED"})
UNANSWERED = frozenset({"NO_ANSWER", "BUSY"})
# A pod that was free for less may have been on its way to somebody.
FREE_S = 3.0
# Pace is kept per second; two clocks and the way to the carrier may push one start into its neighbour.
PACE_SLACK = 1
# Faults that may leave a role without a process, and how long it takes until one listens again.
PROCESS_FAULTS, BACK_WITHIN_S = ("process ", "platform "), 6.0
# A revocation holds everywhere after so long.
REVOKED_WITHIN_S = 10.0
# A process at rest.
LOG_LINES_PER_S_MAX, RSS_MB_MAX, CONNECTIONS_MAX = 20.0, 500.0, 40


def one_dial_per_attempt(evidence: Evidence) -> Iterator[str]:
    for double in double_dials(evidence.dials):
        yield f"I1: {double.rule} {double.key} was dialled twice: {double.call_ids}"


def one_live_call_per_lead(evidence: Evidence) -> Iterator[str]:
    for lead, dials in _dials_by_lead(evidence).items():
        for first, second in pairwise(dials):
            if first.ended_at is None or first.ended_at > second.started_at:
                yield f"I1: lead {lead} had two calls at once: {first.call_id} and {second.call_id}"


def refused_means_not_dialled(evidence: Evidence) -> Iterator[str]:
    """`rejected` and `absent` are the platform's word that no phone rang: the next attempt stands on it."""
    states = {attempt.id: attempt.state for attempt in evidence.attempts}
    for dial in _outbound(evidence):
        state = states.get(UUID(dial.attempt)) if dial.attempt else None
        if state in (AttemptState.REJECTED, AttemptState.ABSENT):
            yield f"I1: {dial.call_id} was dialled for attempt {dial.attempt}, which is {state}"


def channels_kept(evidence: Evidence) -> Iterator[str]:
    """At every start no number has more calls than its limit. One that was lowered counts for later starts."""
    limits = _limits(evidence)
    by_number: dict[str, list[Dial]] = defaultdict(list)
    for dial in evidence.dials:
        by_number[dial.own_number].append(dial)
    for number, dials in by_number.items():
        if number not in limits:
            continue
        for dial in dials:
            if dial.direction == "inbound":
                continue
            live = sum(
                other.started_at <= dial.started_at < (other.ended_at or math.inf)
                for other in dials
                if other.no <= dial.no
            )
            allowed = _limit_at(limits[number], dial.started_at)
            if live > allowed:
                yield f"I2: {number} had {live} calls at {dial.started_at:.3f}, allowed were {allowed}"


def pods_within_capacity(evidence: Evidence) -> Iterator[str]:
    """Every pod takes one call at a time, by its own log. A pod that was killed ended its calls."""
    lives: dict[str, list[Served]] = defaultdict(list)
    for pod in evidence.pods:
        lives[pod.name] += pod.calls
    for name, calls in lives.items():
        calls.sort(key=lambda call: call.span.began_s)
        for earlier, later in pairwise(calls):
            if later.span.began_s < earlier.span.ended_s and later.call != earlier.call:
                yield f"I3: {name} had {earlier.call} and {later.call} at once"


def accepted_leads_exist(evidence: Evidence) -> Iterator[str]:
    """What the API took is there, once."""
    ids, requests = (
        {str(lead.id) for lead in evidence.leads},
        Counter(lead.request_id for lead in evidence.leads),
    )
    phones = Counter(lead.phone for lead in evidence.leads)
    for entry in evidence.diary:
        match entry.what:
            case "lead" if entry.subject not in ids:
                yield f"I4: lead {entry.subject} was accepted and is gone"
            case "bulk row" if requests[entry.subject] != 1:
                yield f"I4: row {entry.subject} was accepted and has {requests[entry.subject]} leads"
            case "campaign":
                for phone in entry.detail["phones"]:
                    if phones[phone] != 1:
                        yield f"I4: {phone} of campaign {entry.subject} has {phones[phone]} leads"


def every_lead_ended(evidence: Evidence) -> Iterator[str]:
    """Or waits for a reason that holds."""
    waiting = {row.lead_id for row in evidence.waiting}
    for lead in evidence.leads:
        if lead.status == LeadStatus.FINISHED:
            if lead.outcome == "UNKNOWN" and lead.reason not in ALARMING:
                yield f"I4: lead {lead.id} ended as UNKNOWN because of {lead.reason}"
        elif str(lead.id) not in waiting:
            yield f"I4: lead {lead.id} is {lead.status} and nobody says why"
    for attempt in evidence.attempts:
        if attempt.holds_channel:
            yield f"I4: attempt {attempt.id} is {attempt.state} and holds its channel"


def reasons_to_wait_hold(evidence: Evidence) -> Iterator[str]:
    """`why` names the gate that truly keeps a lead: the window of a closed campaign, or the clinic's day."""
    closed = {entry.subject for entry in evidence.diary if entry.what == "campaign closed"}
    stopped = {entry.subject for entry in evidence.diary if entry.what == "campaign stopped"}
    for row in evidence.waiting:
        if row.campaign_id in closed:
            # Its due time is put to the next opening.
            expected: tuple[str, ...] = ("window", "due")
        elif row.merchant_id == tenancy.CLINIC:
            expected = ("limit", "recent_contact")
        else:
            expected = ()
        if row.campaign_id in stopped or not any(reason in expected for reason in row.reasons):
            yield f"I4: lead {row.lead_id} waits, and `why` says {', '.join(row.reasons) or 'nothing'}"


def dials_are_recorded(evidence: Evidence) -> Iterator[str]:
    known = {attempt.id for attempt in evidence.attempts}
    for dial in _outbound(evidence):
        if dial.attempt is None or UUID(dial.attempt) not in known:
            yield f"I4: {dial.call_id} to {dial.to} was dialled and no attempt is recorded"


def valkey_is_the_projection(evidence: Evidence) -> Iterator[str]:
    if evidence.left_in_valkey:
        yield f"I6: at rest Valkey still has {evidence.left_in_valkey}"


def facts_never_go_back(evidence: Evidence) -> Iterator[str]:
    for move in evidence.attempt_moves:
        # Attempts whose COMMIT was not answered are written as not sent.
        if (move.before, move.after) == ("in_doubt", "rejected"):
            continue
        if AttemptState(move.after) not in ATTEMPT_MOVES[AttemptState(move.before)]:
            yield f"I7: attempt {move.id} went from {move.before} to {move.after}"
    for move in evidence.lead_moves:
        # A lead that is over waits again by a person's order, and nobody gives one here.
        is_reopened = (move.before, move.after) == (LeadStatus.FINISHED, LeadStatus.BACKLOG)
        if is_reopened or LeadStatus(move.after) not in LEAD_MOVES[LeadStatus(move.before)]:
            yield f"I7: lead {move.id} went from {move.before} to {move.after}"


def outcomes_as_the_ledger_tells(evidence: Evidence) -> Iterator[str]:
    """Who answered is recorded as such, nobody who had an agent as one without, and a lead ended as its last call."""
    dialled = {UUID(dial.attempt): dial for dial in _outbound(evidence) if dial.attempt}
    served = {call.call for pod in evidence.pods for call in pod.calls}
    last: dict[UUID, tuple[int, Dial]] = {}
    for attempt in evidence.attempts:
        dial = dialled.get(attempt.id)
        if dial is None or attempt.lead_id is None or attempt.state != AttemptState.ENDED:
            continue
        if (attempt.answered_at is None) is not (dial.answered_at is None):
            yield f"I9: attempt {attempt.id} was answered at {attempt.answered_at}, the carrier says {dial.answered_at}"
        if attempt.agent == ("none" if dial.call_id in served else "joined") and _carrier(dial) != "vapi":
            yield f"I9: attempt {attempt.id} has agent {attempt.agent}; a pod says {dial.call_id in served}"
        if attempt.lead_id not in last or last[attempt.lead_id][0] < attempt.ordinal:
            last[attempt.lead_id] = attempt.ordinal, dial
    outcomes = {lead.id: (lead.outcome, lead.reason) for lead in evidence.leads}
    for lead_id, (_, dial) in last.items():
        outcome, reason = outcomes.get(lead_id, (None, None))
        if outcome in (UNANSWERED if dial.answered_at is not None else ANSWERED):
            yield f"I9: lead {lead_id} ended as {outcome} ({reason}); its last call {dial.call_id} was {dial.status}"


def nobody_sees_strangers(evidence: Evidence) -> Iterator[str]:
    for entry in evidence.diary:
        if entry.what == "listed" and entry.detail["strangers"]:
            yield f"I8: a key of {entry.subject} saw leads {entry.detail['strangers'][:3]}"


def revoked_keys_are_refused(evidence: Evidence) -> Iterator[str]:
    for key, since_s in evidence.still_accepted:
        if since_s > REVOKED_WITHIN_S:
            yield f"I8: key {key} is accepted {since_s:.0f} s after it was revoked"


def nobody_waits_beside_a_free_agent(evidence: Evidence) -> Iterator[str]:
    """Who answered and had no agent had none while no pod was free for three seconds without a fault. Exotel cannot
    wait, and Vapi has agents of its own."""
    served = {call.call for pod in evidence.pods for call in pod.calls}
    for call in evidence.answered:
        if call.call_id in served or call.carrier in ("exotel", "vapi") or call.agent_at is not None:
            continue
        for began_s, ended_s in _calm(evidence, call.answered_at, call.ended_at or call.answered_at):
            if pod := _free_pod(evidence.pods, began_s, ended_s):
                yield f"I9: {call.call_id} had no agent while {pod} was free from {began_s:.1f} to {ended_s:.1f}"
                break


def answers_are_documents(evidence: Evidence) -> Iterator[str]:
    """What nginx says while all processes of a role are down is not ours to say."""
    for call in evidence.answered:
        for document in call.documents:
            if document.bad and not _is_struck(evidence, document.asked_at, PROCESS_FAULTS):
                yield (
                    f"I9: {call.carrier} asked for {document.kind} of {call.call_id} and got no document: "
                    f"{document.statuses}"
                )


def stops_are_kept(evidence: Evidence) -> Iterator[str]:
    """Nobody is dialled for what was stopped, from a second after the answer until it was lifted."""
    leads = {lead.phone: lead for lead in evidence.leads}
    for entry in evidence.diary:
        if not entry.what.endswith(" stopped") or entry.answered_s is None or "until_s" not in entry.detail:
            continue
        what = entry.what.removesuffix(" stopped")
        began_s, until_s = entry.answered_s + IN_FORCE_AFTER_S, entry.detail["until_s"]
        for dial in _outbound(evidence):
            if began_s < dial.requested_at < until_s and _concerns(
                what, entry.subject, dial, leads.get(dial.to)
            ):
                yield (
                    f"stop: {dial.to} was dialled {dial.requested_at - entry.answered_s:.2f} s after "
                    f"{what} {entry.subject} was stopped"
                )


def ended_leads_are_not_dialled(evidence: Evidence) -> Iterator[str]:
    """After an abort, an opt-out, or the stop of a campaign."""
    by_id = {str(lead.id): lead.phone for lead in evidence.leads}
    from_s: dict[str, tuple[float, str]] = {}
    for entry in evidence.diary:
        if entry.answered_s is None:
            continue
        match entry.what:
            case "aborted" if entry.subject in by_id:
                from_s[by_id[entry.subject]] = entry.answered_s, "its lead was aborted"
            case "opted out":
                from_s[entry.subject] = entry.answered_s, "they opted out"
            case "campaign stopped" if "until_s" not in entry.detail:
                for lead in evidence.leads:
                    if str(lead.campaign_id) == entry.subject:
                        from_s[lead.phone] = entry.answered_s, "their campaign was stopped"
    for dial in _outbound(evidence):
        since_s, why = from_s.get(dial.to, (math.inf, ""))
        if dial.requested_at > since_s + IN_FORCE_AFTER_S:
            yield f"stop: {dial.to} was dialled {dial.requested_at - since_s:.2f} s after {why}"


def windows_are_kept(evidence: Evidence) -> Iterator[str]:
    closed = {entry.subject for entry in evidence.diary if entry.what == "campaign closed"}
    phones = {lead.phone: lead for lead in evidence.leads if str(lead.campaign_id) in closed}
    for dial in _outbound(evidence):
        if dial.to in phones:
            yield f"window: {dial.to} was dialled outside the window of its campaign"


def limits_are_kept(evidence: Evidence) -> Iterator[str]:
    """The clinic's day; concurrent calls and starts a second of every campaign."""
    leads = {lead.phone: lead for lead in evidence.leads}
    clinic = [dial for dial in _outbound(evidence) if _merchant(leads.get(dial.to)) == tenancy.CLINIC]
    if len(clinic) > tenancy.CLINIC_ATTEMPTS_PER_DAY:
        yield f"limit: {len(clinic)} calls of a merchant with {tenancy.CLINIC_ATTEMPTS_PER_DAY} a day"
    by_campaign: dict[UUID, list[Dial]] = defaultdict(list)
    for dial in _outbound(evidence):
        lead = leads.get(dial.to)
        if lead is not None and lead.campaign_id is not None:
            by_campaign[lead.campaign_id].append(dial)
    for campaign, dials in by_campaign.items():
        for dial in dials:
            live = sum(
                other.started_at <= dial.started_at < (other.ended_at or math.inf)
                for other in dials
                if other.no <= dial.no
            )
            if live > tenancy.CAMPAIGN_CONCURRENT_MAX:
                yield f"limit: campaign {campaign} had {live} calls at once"
        starts = _most_within(dials, 1.0)
        if starts > tenancy.CAMPAIGN_STARTS_PER_S + PACE_SLACK:
            yield f"pace: campaign {campaign} started {starts} calls within a second"


def jobs_end_once(evidence: Evidence) -> Iterator[str]:
    """Every job that was enqueued was finished, under one fence; those of one key ran one after the other."""
    done = Counter(row.name for row in evidence.done if row.what == "job")
    for row in evidence.asked:
        if row.what == "job" and done[row.name] != 1:
            yield f"job {row.name} was finished {done[row.name]} times"
    by_key: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for run in evidence.runs:
        if run.key:
            by_key[run.key].append((run.began.timestamp(), run.ended.timestamp(), run.name))
    for key, runs in by_key.items():
        for (_, ended_s, first), (began_s, _, second) in pairwise(sorted(runs)):
            if began_s < ended_s and not evidence.plan.sets_engine_clock:
                yield f"jobs {first} and {second} of key {key} ran at once"


def events_in_order_and_once(evidence: Evidence) -> Iterator[str]:
    done = _names_by_key(row for row in evidence.done if row.what == "event")
    for key, names in _names_by_key(row for row in evidence.asked if row.what == "event").items():
        handled = done.get(key, [])
        if twice := [name for name, times in Counter(handled).items() if times > 1]:
            yield f"mailbox {key}: events {twice[:5]} were handled twice"
        elif missing := sorted(set(names) - set(handled)):
            yield f"mailbox {key}: events {missing[:5]} are stranded"
        elif handled != names:
            at = next(n for n, (one, two) in enumerate(zip(names, handled, strict=False)) if one != two)
            yield f"mailbox {key}: event {names[at]} was handled after {handled[at]}"


def occurrences_have_one_lead(evidence: Evidence) -> Iterator[str]:
    """A reminder that was due has rung or been skipped once."""
    phones = Counter(lead.phone for lead in evidence.leads)
    for entry in evidence.diary:
        if entry.what != "reminder":
            continue
        leads = phones[entry.detail["phone"]]
        if leads > 1 or evidence.occurrences.get(entry.subject, 0) != leads:
            made = evidence.occurrences.get(entry.subject, 0)
            yield f"reminder {entry.subject} has {leads} leads and {made} occurrences with one"


def edits_are_audited(evidence: Evidence) -> Iterator[str]:
    """Every change that was answered has its line."""
    lines = Counter(evidence.audit)
    expected = {
        "aborted": ("lead.aborted", "lead.cancel_requested"),
        "channels": ("number.changed",),
        "policy": ("policy.set",),
        "key revoked": ("key.revoked",),
        "password": ("account.changed",),
        "opted out": ("do_not_call.added",),
        "everything stopped": ("control.stopped",),
        "merchant stopped": ("control.stopped",),
        "number stopped": ("control.stopped",),
    }
    actions = Counter(action for action, _ in lines.elements())
    for what, names in expected.items():
        changes = sum(entry.what == what and entry.answered_s is not None for entry in evidence.diary)
        if changes and not any(actions[name] for name in names):
            yield f"audit: {changes} times {what}, and no line says {' or '.join(names)}"


def forgeries_are_refused(evidence: Evidence) -> Iterator[str]:
    for status in evidence.forged:
        if status < 400:
            yield f"a forged webhook was answered with {status}"


def processes_come_to_rest(evidence: Evidence) -> Iterator[str]:
    for process in evidence.processes:
        if process.log_lines_per_s > LOG_LINES_PER_S_MAX:
            yield f"rest: {process.name} logs {process.log_lines_per_s:.0f} lines a second although nothing happens"
        if process.rss_mb > RSS_MB_MAX:
            yield f"rest: {process.name} has {process.rss_mb:.0f} MB"
        if process.connections > CONNECTIONS_MAX:
            yield f"rest: {process.name} has {process.connections} connections to Postgres"


CHECKERS: Sequence[Checker] = (
    one_dial_per_attempt,
    one_live_call_per_lead,
    refused_means_not_dialled,
    channels_kept,
    pods_within_capacity,
    accepted_leads_exist,
    every_lead_ended,
    reasons_to_wait_hold,
    dials_are_recorded,
    valkey_is_the_projection,
    facts_never_go_back,
    outcomes_as_the_ledger_tells,
    nobody_sees_strangers,
    revoked_keys_are_refused,
    nobody_waits_beside_a_free_agent,
    answers_are_documents,
    stops_are_kept,
    ended_leads_are_not_dialled,
    windows_are_kept,
    limits_are_kept,
    jobs_end_once,
    events_in_order_and_once,
    occurrences_have_one_lead,
    edits_are_audited,
    forgeries_are_refused,
    processes_come_to_rest,
)


def violations(evidence: Evidence) -> list[str]:
    return [sentence for checker in CHECKERS for sentence in checker(evidence)]


# Readings of the evidence


def _outbound(evidence: Evidence) -> list[Dial]:
    return [dial for dial in evidence.dials if dial.direction == "outbound"]


def _carrier(dial: Dial) -> str:
    return tenancy.NUMBERS[dial.own_number][0]


def _merchant(lead: LeadRow | None) -> str | None:
    return lead.merchant_id if lead is not None else None


def _dials_by_lead(evidence: Evidence) -> Mapping[UUID, list[Dial]]:
    lead_of = {attempt.id: attempt.lead_id for attempt in evidence.attempts}
    found: dict[UUID, list[Dial]] = defaultdict(list)
    for dial in sorted(_outbound(evidence), key=lambda dial: dial.started_at):
        if dial.attempt and (lead := lead_of.get(UUID(dial.attempt))):
            found[lead].append(dial)
    return found


def _limits(evidence: Evidence) -> Mapping[str, list[tuple[float, float, int]]]:
    """By number, when a limit was asked for, when it held for sure, and what it was."""
    limits = {e164: [(0.0, 0.0, channels)] for e164, (_, _, channels) in tenancy.NUMBERS.items()}
    for entry in evidence.diary:
        if entry.what == "channels" and entry.answered_s is not None:
            limits[entry.subject].append((entry.asked_s, entry.answered_s, entry.detail["max_channels"]))
    return limits


def _limit_at(changes: Sequence[tuple[float, float, int]], moment_s: float) -> int:
    """The largest that may have held when the call was committed."""
    possible = []
    for no, (asked_s, _, limit) in enumerate(changes):
        if asked_s > moment_s:
            break
        held_until_s = changes[no + 1][1] + IN_FORCE_AFTER_S if no + 1 < len(changes) else math.inf
        if moment_s < held_until_s:
            possible.append(limit)
    return max(possible)


def _concerns(what: str, subject: str, dial: Dial, lead: LeadRow | None) -> bool:
    match what:
        case "everything":
            return True
        case "number":
            return dial.own_number == subject
        case "merchant":
            return _merchant(lead) == subject
        case "campaign":
            return lead is not None and str(lead.campaign_id) == subject
        case _:
            return False


def _most_within(dials: Sequence[Dial], seconds: float) -> int:
    starts = sorted(dial.requested_at for dial in dials)
    return max((sum(start <= other < start + seconds for other in starts) for start in starts), default=0)


def _names_by_key(rows: Iterable[AppRow]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        found[row.key].append(row.name)
    return found


def _calm(evidence: Evidence, began_s: float, ended_s: float) -> Iterator[tuple[float, float]]:
    """Times of at least three seconds between these moments in which no fault was in force or had just ended."""
    at_s = began_s
    for _, struck_s, healed_s in sorted(evidence.struck, key=lambda each: each[1]):
        if struck_s - at_s >= FREE_S:
            yield at_s, min(struck_s, ended_s)
        at_s = max(at_s, healed_s + FREE_S)
        if at_s >= ended_s:
            return
    if ended_s - at_s >= FREE_S:
        yield at_s, ended_s


def _is_struck(evidence: Evidence, moment_s: float, kinds: tuple[str, ...]) -> bool:
    return any(
        strike.fault.startswith(kinds) and began_s <= moment_s <= ended_s + BACK_WITHIN_S
        for strike, began_s, ended_s in evidence.struck
    )


def _free_pod(pods: Sequence[PodRecord], began_s: float, ended_s: float) -> str | None:
    moments = [began_s + step * 0.5 for step in range(int((ended_s - began_s) / 0.5) + 1)]
    return next((pod.name for pod in pods if moments and all(map(pod.is_free, moments))), None)


def answered_without_agent(evidence: Evidence) -> list[AnsweredCall]:
    """For the figures of a run: people who answered or rang and whom no pod had."""
    served = {call.call for pod in evidence.pods for call in pod.calls}
    return [
        call
        for call in evidence.answered
        if call.carrier != "vapi" and call.call_id not in served and call.agent_at is None
    ]

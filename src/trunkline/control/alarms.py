"""The definitions of all alarms: meaning, action and rule. `docs/reference/alarms.md` is generated from this file.

An alarm is either measured (a value over its threshold for a while, evaluated by `alarm_loop.py`) or reported (a
component detects the fault and calls `raise_alarm`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from trunkline.store.alarms import StoredAlarm


class Severity(StrEnum):
    """How urgent an alarm is."""

    PAGE = "page"
    URGENT = "urgent"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Measured:
    """Raised when every value of the last `for_s` is over `above`; cleared when none of the last `clear_for_s` is over
    `clear_at`. The gap between the two keeps a value that fluctuates around its threshold from flapping."""

    above: float
    for_s: float
    clear_at: float
    clear_for_s: float
    # What the values count.
    unit: str


@dataclass(frozen=True, slots=True)
class Reported:
    """Raised by the component that detects it; cleared when not reported for `quiet_s`, or (None) only by a person."""

    quiet_s: float | None


@dataclass(frozen=True, slots=True)
class AlarmDefinition:
    name: str
    meaning: str
    # What a person should do.
    action: str
    rule: Measured | Reported
    severity: Severity
    # What its subject names, where there is more than one.
    subject: str = ""


_page = partial(AlarmDefinition, severity=Severity.PAGE)
_urgent = partial(AlarmDefinition, severity=Severity.URGENT)
_warning = partial(AlarmDefinition, severity=Severity.WARNING)
_ALL = (
    _page(
        "dispatch_halted",
        "No dialer placed a call for two minutes, although more than ten overdue leads could be called. A lead does "
        "not count if a control stops it, if the flag `event_dispatch` leaves it out, if its calling window is "
        "closed, if its pool has no free channel, if no agent is free for it, or if a limit or a pace refuses it.",
        "Check that the dialers run, and what they log about matches and intents. Then check whether the carriers "
        "refuse every call. `trunkline doctor` checks Postgres and Valkey.",
        Measured(
            above=10,
            for_s=60,
            clear_at=0,
            clear_for_s=0,
            unit="overdue leads while nothing was placed within a minute",
        ),
    ),
    _page(
        "no_leader",
        "There is no leader, 12 s after the last lease expired or 25 s after its holder stopped on purpose: measured "
        "alarms are not evaluated, and the heartbeat that detects a restored database stands still. Loader, checker "
        "and reconcilers need no leader, and stop only if no process has the role `control`.",
        "Start a process with the role `control`, or find out why those that run cannot renew their lease in Postgres.",
        Reported(quiet_s=15),
    ),
    _page(
        "store_restored",
        "Postgres was restored to an earlier moment, or no witness can rule that out. The kill switch is on.",
        "Run `trunkline restore-check`: it lists the people that would be called again, and settles their leads. Then "
        "lift the kill switch, with a ramp.",
        Reported(quiet_s=None),
    ),
    _page(
        "postgres_unreachable",
        "Postgres did not answer for more than five seconds. Until it does, the webhook, the gauge and `/ready` "
        "report the alarm; the alarm is written to Postgres once it is back.",
        "Check Postgres and the network to it. Nothing is dialled meanwhile, and nothing is lost.",
        Reported(quiet_s=5),
    ),
    _urgent(
        "valkey_unreachable",
        "Valkey did not answer for ten seconds. The dialers dispatch leads from Postgres, at a reduced rate.",
        "Check Valkey and the network to it. The rebuilder restores its projection from Postgres when it is back.",
        Measured(above=0, for_s=10, clear_at=0, clear_for_s=10, unit="failed checks"),
    ),
    _urgent(
        "lateness_high",
        "The 99th percentile of lateness is over 5 s for five minutes. Lateness counts from the moment when "
        "everything that a call needs was available (lead, window, campaign, channel, agent, pace) to its request at "
        "the carrier; time in a backlog does not count.",
        "One step is slow: check the durations of matches and intents, the dialers' CPU, and the calls in flight "
        "(`trunkline_calls_in_flight`).",
        Measured(above=5, for_s=300, clear_at=3, clear_for_s=60, unit="s"),
    ),
    _urgent(
        "schedule_failures",
        "More than 1 % of the new leads of the last five minutes could not be added to the schedule in Valkey at "
        "once. The loader adds them later.",
        "Find out whether Valkey is slow, full or partly unreachable.",
        Measured(above=0.01, for_s=0, clear_at=0.005, clear_for_s=60, unit="of all"),
    ),
    _urgent(
        "attempt_unknown",
        "The outcome of an attempt is unknown: the carrier did not answer the checker's queries. The platform does "
        "not dial the lead again by itself, and holds the channel for as long as a call could last.",
        "Look the attempts up in the carrier's own console. Then leave their leads, or call them again: `trunkline "
        "leads reopen --outcome UNKNOWN --since 24h --reason WHY` queries the carrier once more and reopens the leads "
        "for which it has no call.",
        Measured(above=0, for_s=0, clear_at=0, clear_for_s=30, unit="attempts"),
        subject="carrier/account",
    ),
    _urgent(
        "unknown_rate",
        "More than 1 % of the calls placed in the last 15 minutes ended as unknown.",
        "The carrier's call list is late, incomplete or closed to us: check its status page and our credentials.",
        Measured(above=0.01, for_s=0, clear_at=0.005, clear_for_s=300, unit="of all"),
        subject="carrier",
    ),
    _urgent(
        "carrier_refuses",
        "A carrier refuses calls because of our account, its calls to a country, or one of our numbers; or a process "
        "cannot reach the carrier. The dialer holds such calls back, and sends one at a time as a probe. No lead is "
        "lost. The alarm's detail has the carrier's code, the cause and the remedy.",
        "Do what `remedy` says. `PATCH /api/v1/accounts/{account_id}` changes an account; `trunkline accounts list` "
        "shows its id. The dialer probes within seconds of a change, and otherwise at `tried_again_at`, at most five "
        "minutes later. The first call that the carrier accepts clears the alarm.",
        Reported(quiet_s=700),
        subject="carrier/account, carrier/account/country, number, or process:carrier/account",
    ),
    _warning(
        "unexplained_refusals",
        "A carrier refused a lead three times in a row with a code that is in no table, or its calls never came "
        "about, and the account took no other call meanwhile: the lead or the account may be at fault. The refusals "
        "do not count as attempts; the lead is dialled again after a minute, two, four and so on, at most an hour.",
        "Look up the `code` in the carrier's documentation. Abort the lead if the number is at fault (`trunkline "
        "leads abort LEAD --reason WHY`); if the account is, change it.",
        # A lead is tried at least every hour while its window is open.
        Reported(quiet_s=7200),
        subject="carrier/account",
    ),
    _urgent(
        "no_agents",
        "Leads have been overdue for two minutes, because no agent takes calls: none is registered, or all are silent, "
        "draining or not ready. No lead is dialled without an agent.",
        "Start agents, or find out why the router gets no heartbeats of those that run (`trunkline doctor`, "
        "`trunkline router status`). For external agents set `AGENTS=elsewhere`, or `agents` of a merchant or a pool.",
        Measured(above=0, for_s=120, clear_at=0, clear_for_s=0, unit="overdue leads"),
    ),
    _urgent(
        "merchant_without_agents",
        "Leads of a merchant have been overdue for two minutes, because no agent takes calls in any tier that its "
        "calls reach. Agents of other tiers do.",
        "`trunkline router status` shows the agents of each tier. Start some in the merchant's tier or in a common "
        "one, or change `TIER_CONFIG` or the merchant's tier.",
        Measured(above=0, for_s=120, clear_at=0, clear_for_s=0, unit="overdue leads"),
        subject="merchant",
    ),
    _urgent(
        "leads_without_number",
        "Leads have been overdue for a minute, because their pool has no number that may dial: there is none, or all "
        "are draining, disabled or without channels.",
        "Add a number to the pool or activate one (`trunkline numbers list`), or move the leads to another pool.",
        Measured(above=0, for_s=60, clear_at=0, clear_for_s=0, unit="overdue leads"),
        subject="pool",
    ),
    _warning(
        "stop_lasting",
        "A stop has been on for more than twelve hours: the kill switch, the promoter's pause, or a stop of a "
        "reseller, a merchant, a carrier or a number. Drafts and pauses of campaigns do not count.",
        "The alarm shows the reason and who set the stop. Lift it (`trunkline control show`), or set an end.",
        Measured(above=12, for_s=0, clear_at=0, clear_for_s=0, unit="h"),
        subject="scope and subject",
    ),
    _warning(
        "agents_busy",
        "Leads are overdue and nothing was placed for 15 minutes, because every agent is busy, or the free ones are "
        "the inbound reserve.",
        "Start more agents to dial sooner. If the alarm persists with few live calls, look for pods that do not "
        "release their calls (`trunkline router status`).",
        Measured(
            above=0,
            for_s=840,
            clear_at=0,
            clear_for_s=0,
            unit="overdue leads while nothing was placed within a minute",
        ),
    ),
    _urgent(
        "answered_without_agent",
        "A person answered and no agent took the call: the router allocated no pod, the stream could not be opened, "
        "or the pod did not serve it. The dialer calls the lead again after 5 minutes and after an hour, without "
        "using up its attempts.",
        "The alarm lists the attempts. Check their pods: whether they run, whether they refuse streams, and whether "
        "the carrier can reach them. `trunkline router status` shows free slots. With `abandon_max` above 0 the "
        "policy accepts some of these calls.",
        Reported(quiet_s=600),
        subject="merchant",
    ),
    _warning(
        "overdialling_ended",
        "The abandonment rate of a campaign or of its merchant has reached 80 % of `abandon_max`. The dialer reserves "
        "an agent for each of its calls again, and so makes fewer.",
        "`GET /api/v1/campaigns/{id}/progress` shows the rates. Overdialling resumes by itself once the rate has "
        "fallen. Check whether agents were lost or calls last longer than before; otherwise the policy's "
        "`abandon_max` is too high.",
        Reported(quiet_s=600),
        subject="merchant/campaign",
    ),
    _urgent(
        "lead_ended_no_agent",
        "A lead was answered three times without an agent, or its rules allow no further call: it ended as NO_AGENT.",
        "The alarm lists the leads. When agents take calls again, call these people once more: `trunkline leads "
        "reopen LEAD --reason WHY`, or all of them: `trunkline leads reopen --outcome NO_AGENT --since 24h --merchant "
        "MERCHANT --reason WHY`.",
        Reported(quiet_s=3600),
        subject="merchant",
    ),
    _urgent(
        "no_agent_brake",
        "In five minutes more than five and more than 10 % of a merchant's answered calls had no agent. The dialer "
        "stops the merchant's dials for five minutes, then dials one at a time until an agent takes a call.",
        "The brake ends by itself. Find out why its calls reach no agent, as for `answered_without_agent`.",
        Reported(quiet_s=1800),
        subject="merchant",
    ),
    _warning(
        "agent_unknown_rate",
        "For more than 5 % of the calls answered in the last 15 minutes there is no evidence whether an agent took "
        "them. They count as ANSWERED, with `agent: unknown`, and their leads are not called again because of it.",
        "Have the agents name their calls in heartbeats every 5 s, read their context or report outcomes, as the "
        "agent library does. For external agents set `AGENTS=elsewhere`, or `agents` of the merchant or the pool.",
        Measured(above=0.05, for_s=0, clear_at=0.025, clear_for_s=300, unit="of all"),
        subject="carrier",
    ),
    _urgent(
        "mass_free_breaker",
        "A reconciler would have freed more than 50 channels and 20 % of those held, without the carrier's status of "
        "each call. It freed none: no call uses these channels, and the leads that hold them wait.",
        "Find out why so many holders look dead: a restored database, a lost table, a wrong clock. When the cause is "
        "clear and none of their calls is live, free the channels: `trunkline control free-channels --reason WHY`.",
        Reported(quiet_s=600),
        subject="reconciler",
    ),
    _urgent(
        "pods_vanished",
        "More than a third of the pods vanished within a minute. The router removes none of them and no call loses its "
        "pod, because the fault is more likely in the observation. Pods last seen idle still get calls.",
        "Check whether the pods run: if they do, repair what is between them and the router (network, API server, "
        "clock). If they do not, start them. Pods that are still missing are removed after 15 minutes.",
        Reported(quiet_s=60),
    ),
    _warning(
        "pod_hangs",
        "A pod has named a call for more than a minute that has ended, or that belongs to another pod: the router "
        "gives it no other call. Or its agent library reports that handlers of ended calls do not end (`hanging` in "
        "`trunkline router pods`): each of them takes up one slot of the pod.",
        "Check whether a call is still live there. If its agent hangs, free the pod with `trunkline router reset "
        "POD`, or restart it. Only a restart ends handlers that hang; the pod's log has the line at which they do.",
        Reported(quiet_s=120),
        subject="pod",
    ),
    _urgent(
        "pod_name_twice",
        "Two processes send heartbeats under one pod's name in turns: two clusters share a router or a key prefix. "
        "The router gives calls to the later one only, and refuses the other one.",
        "Give the second cluster a router and a ROUTER_KEY_PREFIX of its own, or its pods other names.",
        Reported(quiet_s=300),
        subject="pod",
    ),
    _urgent(
        "dead_mailbox",
        "A mailbox is dead: its handler failed too often. No worker processes its events until an operator replays "
        "it; if its kind is `call`, the call holds its lead and its channel meanwhile.",
        "`trunkline mailbox list KIND --status dead` shows its last error. Fix the cause, then `trunkline mailbox "
        "replay KIND --reason WHY`.",
        Measured(above=0, for_s=0, clear_at=0, clear_for_s=0, unit="mailboxes"),
        subject="kind",
    ),
    _warning(
        "mailboxes_waiting",
        "A mailbox of a kind has waited for more than a minute although a worker could claim it: no worker has a "
        "handler of this kind, because the kind was renamed or its worker is gone, or its workers are too slow.",
        "`trunkline mailbox summary` shows the waiting mailboxes. Start a worker with a handler of the kind, or more "
        "of them. If the kind has another name now: `trunkline mailbox rename OLD NEW --reason WHY`.",
        Measured(above=60, for_s=0, clear_at=30, clear_for_s=0, unit="s"),
        subject="kind",
    ),
    _warning(
        "events_set_aside",
        "A handler could not read some events, and its worker parked them, each with its error. Their mailboxes went "
        "on without them. Cleared 15 minutes after the last one.",
        "The log lists them (`mailbox.event_parked`), and `trunkline mailbox events KIND KEY --which parked` shows "
        "them. Find the sender of the unreadable events; fix the cause, then `trunkline mailbox replay KIND KEY --seq "
        "NUMBER --reason WHY`.",
        Measured(above=0, for_s=0, clear_at=0, clear_for_s=900, unit="events a minute"),
        subject="kind",
    ),
    _urgent(
        "pod_takes_no_stream",
        "A pod sends heartbeats, but two calls in a row or more did not reach its agent. The router gives it one call "
        "at a time, and reserves it for a dial every 30 s at most, until a call reaches its agent.",
        "Check the pod's log and the network to it: its address, its port, the proxy in front of it. Then restart it.",
        Reported(quiet_s=60),
        subject="pod",
    ),
    _warning(
        "stray_slots",
        "Slots were reserved for calls that have ended or never existed. The slot check has freed them.",
        "No component should leave such a slot behind. Look for rows that were changed by hand; if there are none, "
        "report a bug.",
        Reported(quiet_s=600),
    ),
    _warning(
        "late_fact",
        "A call reappeared after the checker had written its attempt off. It is reattached to its lead (`adopted`) if "
        "the lead has no newer attempt and has not ended otherwise; else the platform hangs it up, unless it has "
        "ended.",
        "With `hung_up` a person may have been rung twice. If the alarm is frequent, the carrier's call list lags "
        "more than the checker allows for.",
        Reported(quiet_s=600),
        subject="adopted or hung_up",
    ),
    _urgent(
        "foreign_call",
        "The carrier sent webhooks of a second call under one attempt: a dial request was duplicated on its way to "
        "the carrier. The platform ignores webhooks of the second call and gives it no agent.",
        "A person was rung twice. Find the proxy that repeats requests, or show both call ids to the carrier.",
        Reported(quiet_s=600),
    ),
    _warning(
        "dead_jobs",
        "Jobs failed for good and are dead letters now.",
        "`trunkline jobs dead` shows their last errors. Fix the cause, then `trunkline jobs retry JOB`, or `trunkline "
        "jobs dead --replay` for all of them.",
        Measured(above=0, for_s=0, clear_at=0, clear_for_s=0, unit="jobs"),
        subject="job type",
    ),
    _warning(
        "channel_drift",
        "More than five channels were held in Valkey and not in Postgres, or the other way round.",
        "The reconciler has corrected it. If the alarm returns, look for dialers that die and for lost releases.",
        Measured(above=5, for_s=0, clear_at=5, clear_for_s=60, unit="channels"),
    ),
    _warning(
        "reconciler_fixes",
        "A reconciler fixes more than ten differences a minute: a component upstream loses them.",
        "The reconciler's log lines show what it fixed. Look for the component that should have done it.",
        Measured(above=10, for_s=0, clear_at=5, clear_for_s=120, unit="fixes a minute"),
        subject="reconciler",
    ),
    _warning(
        "workers_down",
        "50 % of the processes of a role or more fell silent within the last ten minutes without a planned stop, and "
        "were not replaced. A restart or a scale-down does not count.",
        "Find out why they ended: a crash, a full node, a deployment that went wrong.",
        Measured(above=0.499, for_s=15, clear_at=0.25, clear_for_s=15, unit="of all"),
        subject="role",
    ),
)
DEFINITIONS: Mapping[str, AlarmDefinition] = {definition.name: definition for definition in _ALL}


def described(alarm: StoredAlarm) -> StoredAlarm:
    """With its meaning and the action. An alarm of another version has neither here."""
    known = DEFINITIONS.get(alarm.name)
    return replace(alarm, meaning=known.meaning, action=known.action) if known else alarm

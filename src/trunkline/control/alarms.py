"""The definitions of all alarms: meaning, action and rule. `docs/reference/alarms.md` is generated from this file.

An alarm is either measured (a value over its threshold for a while, evaluated by `evaluation.py`) or reported (a
component detects the fault and calls `raise_alarm`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
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
    severity: Severity
    meaning: str
    # What a person should do.
    action: str
    rule: Measured | Reported
    # What its subject names, where there is more than one.
    subject: str = ""


_ALL = (
    AlarmDefinition(
        "dispatch_halted",
        Severity.PAGE,
        "Nothing was placed for two minutes, and more than ten leads are overdue that nothing keeps from being called: "
        "none of those that a control stops or the flag `event_dispatch` leaves out, whose calling window is closed, "
        "whose pool has no free channel, for which no agent is free, or that a limit or a pace refuses.",
        "Look at the dialers: do they run, and what do their logs say of matches and intents? Then at the carriers: do "
        "they refuse everything? `trunkline doctor` checks the engines.",
        Measured(
            above=10,
            for_s=60,
            clear_at=0,
            clear_for_s=0,
            unit="overdue leads while nothing was placed within a minute",
        ),
    ),
    AlarmDefinition(
        "no_leader",
        Severity.PAGE,
        "There is no leader, 12 s after the last lease expired or 25 s after its holder stopped on purpose: measured "
        "alarms are not evaluated, and the heartbeat that detects a restored database stands still. Loader, checker "
        "and reconcilers need no leader, and stop only if no process has the role `control`.",
        "Start a process with the role `control`, or find out why those that run cannot renew their lease in Postgres.",
        Reported(quiet_s=15),
    ),
    AlarmDefinition(
        "store_restored",
        Severity.PAGE,
        "Postgres was restored to an earlier moment, or cannot be shown not to have been. The kill switch is on.",
        "Run `trunkline restore-check`: it shows who would be called again, and settles it. Then lift the kill "
        "switch, with a ramp.",
        Reported(quiet_s=None),
    ),
    AlarmDefinition(
        "postgres_unreachable",
        Severity.PAGE,
        "Postgres did not answer for more than five seconds. While it lasts the webhook, the gauge and `/ready` report "
        "it; the alarm is written to Postgres once it is back.",
        "Check Postgres and the network to it. Nothing is dialled meanwhile, and nothing is lost.",
        Reported(quiet_s=5),
    ),
    AlarmDefinition(
        "valkey_unreachable",
        Severity.URGENT,
        "Valkey did not answer for ten seconds. Leads are dispatched from Postgres at a reduced rate.",
        "Check Valkey and the network to it. Its projection is rebuilt from Postgres when it is back.",
        Measured(above=0, for_s=10, clear_at=0, clear_for_s=10, unit="failed looks"),
    ),
    AlarmDefinition(
        "lateness_high",
        Severity.URGENT,
        "The 99th percentile of lateness is over 5 s for five minutes. It counts from the moment when everything that "
        "a call needs was there (lead, window, campaign, channel, agent, pace) to its request at the carrier; a "
        "backlog is no lateness.",
        "A step is slow: look at the durations of matches and intents, at the dialers' CPU, and at the calls in flight "
        "(`trunkline_calls_in_flight`).",
        Measured(above=5, for_s=300, clear_at=3, clear_for_s=60, unit="s"),
    ),
    AlarmDefinition(
        "schedule_failures",
        Severity.URGENT,
        "More than 1 % of the new leads of the last five minutes could not be put into the schedule at once. The "
        "loader brings them, later.",
        "Find out whether Valkey is slow, full or partly unreachable.",
        Measured(above=0.01, for_s=0, clear_at=0.005, clear_for_s=60, unit="of all"),
    ),
    AlarmDefinition(
        "attempt_unknown",
        Severity.URGENT,
        "The outcome of an attempt is unknown: its carrier did not answer queries. The lead is not dialled again by "
        "itself, and the channel is held for as long as a call could last.",
        "Look the attempts up in the carrier's own console. Then leave their leads, or call them again: "
        "`trunkline leads reopen --outcome UNKNOWN --since 24h --reason WHY` queries the carrier once more and calls "
        "those of which it has no call.",
        Measured(above=0, for_s=0, clear_at=0, clear_for_s=30, unit="attempts"),
        subject="carrier/account",
    ),
    AlarmDefinition(
        "unknown_rate",
        Severity.URGENT,
        "More than 1 % of the calls placed in the last 15 minutes ended as unknown.",
        "The carrier's call list is late, incomplete or closed to us: check its status page and our credentials.",
        Measured(above=0.01, for_s=0, clear_at=0.005, clear_for_s=300, unit="of all"),
        subject="carrier",
    ),
    AlarmDefinition(
        "carrier_refuses",
        Severity.URGENT,
        "A carrier refuses calls for our sake: an account, its calls to a country, or one of our numbers; or a process "
        "cannot reach it. Calls with it wait, and one at a time tries whether it is over. No lead is lost by it. The "
        "alarm's detail has the carrier's code, the cause and what to do.",
        "Do what `remedy` says. `PATCH /api/v1/accounts/{account_id}` changes an account, whose id `trunkline accounts "
        "list` shows; what was changed is tried within seconds, "
        "everything else when `tried_again_at` has come, at most five minutes later. The first call that is taken ends "
        "it.",
        Reported(quiet_s=700),
        subject="carrier/account, carrier/account/country, number, or process:carrier/account",
    ),
    AlarmDefinition(
        "unexplained_refusals",
        Severity.WARNING,
        "A lead was refused three times in a row with a code that is in no table, or its calls never came about, and "
        "the account took no other call meanwhile, so the lead or the account may be at fault. It "
        "costs the lead nothing; it is tried again after a minute, two, four and so on, at most an hour.",
        "Look up the `code` in the carrier's documentation. Abort the lead if the number is at fault (`trunkline "
        "leads abort LEAD --reason WHY`); if the account is, change it.",
        # A lead is tried at least every hour while its window is open.
        Reported(quiet_s=7200),
        subject="carrier/account",
    ),
    AlarmDefinition(
        "no_agents",
        Severity.URGENT,
        "Leads have been overdue for two minutes, because no agent takes calls: none is registered, or all are silent, "
        "draining or not ready. No lead is dialled without an agent.",
        "Start agents, or find out why the router gets no heartbeats of those that run (`trunkline doctor`, "
        "`trunkline router status`). For external agents set `AGENTS=elsewhere`, or `agents` of a merchant or a pool.",
        Measured(above=0, for_s=120, clear_at=0, clear_for_s=0, unit="overdue leads"),
    ),
    AlarmDefinition(
        "merchant_without_agents",
        Severity.URGENT,
        "Leads of a merchant have been overdue for two minutes, because no agent takes calls in any tier that its "
        "calls reach. Agents of other tiers do.",
        "`trunkline router status` shows the agents of each tier. Start some in the merchant's tier or in a common "
        "one, or change `TIER_CONFIG` or the merchant's tier.",
        Measured(above=0, for_s=120, clear_at=0, clear_for_s=0, unit="overdue leads"),
        subject="merchant",
    ),
    AlarmDefinition(
        "leads_without_number",
        Severity.URGENT,
        "Leads have been overdue for a minute, because their pool has no number that may dial: there is none, or all "
        "are draining, disabled or without channels.",
        "Add a number to the pool or activate one (`trunkline numbers list`), or move the leads to another pool.",
        Measured(above=0, for_s=60, clear_at=0, clear_for_s=0, unit="overdue leads"),
        subject="pool",
    ),
    AlarmDefinition(
        "stop_lasting",
        Severity.WARNING,
        "A stop has been on for more than twelve hours: the kill switch, the promoter's pause, or a stop of a "
        "reseller, a merchant, a carrier or a number. Drafts and pauses of campaigns do not count.",
        "The alarm names its reason and who set it. Lift it (`trunkline control show`), or give it an end.",
        Measured(above=12, for_s=0, clear_at=0, clear_for_s=0, unit="h"),
        subject="scope and subject",
    ),
    AlarmDefinition(
        "agents_busy",
        Severity.WARNING,
        "Leads are overdue and nothing was placed for 15 minutes, because every agent is busy, or the free ones are "
        "the inbound reserve.",
        "More agents would dial sooner. If it stays so with few live calls, look for pods that do not release their "
        "calls (`trunkline router status`).",
        Measured(
            above=0,
            for_s=840,
            clear_at=0,
            clear_for_s=0,
            unit="overdue leads while nothing was placed within a minute",
        ),
    ),
    AlarmDefinition(
        "answered_without_agent",
        Severity.URGENT,
        "A person answered and got no agent: the call got no pod, its stream could not be opened, or its pod did not "
        "serve it. The lead is called again after 5 minutes and after an hour, without using up its attempts.",
        "The alarm names the attempts. Look at their pods: do they run, do they refuse streams, can the carrier reach "
        "them? `trunkline router status` shows what is free. With `abandon_max` above 0 some of it is a policy's "
        "choice.",
        Reported(quiet_s=600),
        subject="merchant",
    ),
    AlarmDefinition(
        "overdialling_ended",
        Severity.WARNING,
        "The abandonment rate of a campaign or of its merchant has reached 80 % of `abandon_max`. An agent is reserved "
        "for each of its calls again, and fewer are made.",
        "`GET /api/v1/campaigns/{id}/progress` shows the rates. Overdialling resumes by itself once the rate has "
        "fallen. Check whether agents were lost or calls last longer than before; otherwise the policy is too "
        "ambitious.",
        Reported(quiet_s=600),
        subject="merchant/campaign",
    ),
    AlarmDefinition(
        "lead_ended_no_agent",
        Severity.URGENT,
        "A lead was answered three times without an agent, or its rules allow no further call: it ended as NO_AGENT.",
        "The alarm names the leads. When the agents are well again, call these people once more: "
        "`trunkline leads reopen LEAD --reason WHY`, or all of them: "
        "`trunkline leads reopen --outcome NO_AGENT --since 24h --merchant MERCHANT --reason WHY`.",
        Reported(quiet_s=3600),
        subject="merchant",
    ),
    AlarmDefinition(
        "no_agent_brake",
        Severity.URGENT,
        "In five minutes more than five and more than 10 % of a merchant's answered calls had no agent. Its dials are "
        "stopped for five minutes, then go one at a time until a call has its agent.",
        "Nothing needs to be lifted by hand. Find out why its calls reach no agent, as for `answered_without_agent`.",
        Reported(quiet_s=1800),
        subject="merchant",
    ),
    AlarmDefinition(
        "agent_unknown_rate",
        Severity.WARNING,
        "For more than 5 % of the calls answered in the last 15 minutes there is no evidence whether an agent took "
        "them. They count as ANSWERED, with `agent: unknown`, and their leads are not called again because of it.",
        "Let agents name their calls in heartbeats every 5 s, read their context or report outcomes, as the agent "
        "library does. For external agents set `AGENTS=elsewhere`, or `agents` of the merchant or the pool.",
        Measured(above=0.05, for_s=0, clear_at=0.025, clear_for_s=300, unit="of all"),
        subject="carrier",
    ),
    AlarmDefinition(
        "mass_free_breaker",
        Severity.URGENT,
        "A reconciler would have freed more than 50 channels and 20 % of those held, without the carrier's status of "
        "each. It stopped instead: the channels are not used, and the leads that hold them wait.",
        "Find out why so many holders look dead: a database that went back, a lost table, a wrong clock. When it is "
        "understood and no call of theirs is live, free them: `trunkline control free-channels --reason WHY`.",
        Reported(quiet_s=600),
        subject="reconciler",
    ),
    AlarmDefinition(
        "pods_vanished",
        Severity.URGENT,
        "More than a third of the pods vanished within a minute. The router removes none of them and no call loses its "
        "pod, because the fault is more likely in the observation. Pods last seen idle still get calls.",
        "Check whether the pods run: if they do, repair what is between them and the router (network, API server, "
        "clock). If they do not, start them. Pods that are still missing are removed after 15 minutes.",
        Reported(quiet_s=60),
    ),
    AlarmDefinition(
        "pod_hangs",
        Severity.WARNING,
        "A pod has named a call for more than a minute that has ended, or that is not its own: it gets no other call. "
        "Or its agent library reports that handlers of ended calls do not end (`hanging` in `trunkline router pods`): "
        "each of them takes up one slot of the pod.",
        "Check whether a call is still live there. If its agent hangs, free the pod with `trunkline router reset POD`, "
        "or restart it. Handlers that hang end only with a restart; the pod's log names the line at which they do.",
        Reported(quiet_s=120),
        subject="pod",
    ),
    AlarmDefinition(
        "pod_name_twice",
        Severity.URGENT,
        "Two processes send heartbeats under one pod's name in turns: two clusters share a router, or a key prefix. "
        "Only the later one gets calls, the other one is refused.",
        "Give the second cluster a router and a ROUTER_KEY_PREFIX of its own, or its pods other names.",
        Reported(quiet_s=300),
        subject="pod",
    ),
    AlarmDefinition(
        "dead_mailbox",
        Severity.URGENT,
        "A mailbox is dead: its handler failed too often. No worker processes its events until it is replayed; of kind "
        "`call`, a call holds its lead and its channel meanwhile.",
        "`trunkline mailbox list KIND --status dead` shows its last error. Fix the cause, then "
        "`trunkline mailbox replay KIND --reason WHY`.",
        Measured(above=0, for_s=0, clear_at=0, clear_for_s=0, unit="mailboxes"),
        subject="kind",
    ),
    AlarmDefinition(
        "mailboxes_waiting",
        Severity.WARNING,
        "A mailbox of a kind has waited for more than a minute although a worker could take it: no worker handles this "
        "kind, because it was renamed or its worker is gone, or its workers cannot keep up.",
        "`trunkline mailbox summary` shows what waits. Start a worker with a handler of the kind, or more of them. If "
        "its handler has another name now: `trunkline mailbox rename OLD NEW --reason WHY`.",
        Measured(above=60, for_s=0, clear_at=30, clear_for_s=0, unit="s"),
        subject="kind",
    ),
    AlarmDefinition(
        "events_set_aside",
        Severity.WARNING,
        "Events could not be read and were set aside, each with its error. Their mailboxes went on without them. "
        "Cleared 15 minutes after the last one.",
        "The log names them (`mailbox.event_parked`), and `trunkline mailbox events KIND KEY --which parked` shows "
        "them. Find the sender of the unreadable events; fix the cause, then "
        "`trunkline mailbox replay KIND KEY --seq NUMBER --reason WHY`.",
        Measured(above=0, for_s=0, clear_at=0, clear_for_s=900, unit="events a minute"),
        subject="kind",
    ),
    AlarmDefinition(
        "pod_takes_no_stream",
        Severity.URGENT,
        "A pod sends heartbeats, and two calls in a row or more did not reach its agent. It gets one call at a time, "
        "and is reserved for a dial every 30 s at most, until one reaches its agent.",
        "Check the pod's log and the network to it: its address, its port, the proxy before it. Then restart it.",
        Reported(quiet_s=60),
        subject="pod",
    ),
    AlarmDefinition(
        "stray_slots",
        Severity.WARNING,
        "Slots were reserved for calls that have ended or never existed. They have been freed.",
        "Nothing should leave such a slot behind. Look for rows that were changed by hand, and report it if there are "
        "none.",
        Reported(quiet_s=600),
    ),
    AlarmDefinition(
        "late_fact",
        Severity.WARNING,
        "A call reappeared after its attempt had been written off: it is reattached (`adopted`) if the lead has no "
        "newer attempt and has not ended otherwise, else hung up, unless it has ended.",
        "With `hung_up` a person may have been rung twice. If it happens often, the carrier's call list lags more than "
        "the checker allows for.",
        Reported(quiet_s=600),
        subject="adopted or hung_up",
    ),
    AlarmDefinition(
        "foreign_call",
        Severity.URGENT,
        "Webhooks of a second call came under one attempt: a dial request was duplicated on its way to the carrier. "
        "Webhooks of the second call change nothing, and it gets no agent.",
        "A person was rung twice. Find the proxy that repeats requests, or show both call ids to the carrier.",
        Reported(quiet_s=600),
    ),
    AlarmDefinition(
        "dead_jobs",
        Severity.WARNING,
        "Jobs failed for good and wait as dead letters.",
        "`trunkline jobs dead` shows their last errors. Fix the cause, then `trunkline jobs retry JOB`, or `trunkline "
        "jobs dead --replay` for all of them.",
        Measured(above=0, for_s=0, clear_at=0, clear_for_s=0, unit="jobs"),
        subject="job type",
    ),
    AlarmDefinition(
        "channel_drift",
        Severity.WARNING,
        "More than five channels were held in Valkey and not in Postgres, or the other way round.",
        "The reconciler has corrected it. If it comes back, look for dialers that die and for lost releases.",
        Measured(above=5, for_s=0, clear_at=5, clear_for_s=60, unit="channels"),
    ),
    AlarmDefinition(
        "reconciler_fixes",
        Severity.WARNING,
        "A reconciler fixes more than ten things a minute: something upstream loses them.",
        "Its log lines say what it fixed. Look for the component that should have done it.",
        Measured(above=10, for_s=0, clear_at=5, clear_for_s=120, unit="fixes a minute"),
        subject="reconciler",
    ),
    AlarmDefinition(
        "workers_down",
        Severity.WARNING,
        "50 % of the processes of a role or more fell silent within the last ten minutes without a planned stop, and "
        "were not replaced. A restart or a scale-down does not count.",
        "Find out why they ended: a crash, a full node, a deployment that went wrong.",
        Measured(above=0.499, for_s=15, clear_at=0.25, clear_for_s=15, unit="of all"),
        subject="role",
    ),
)
DEFINITIONS: Mapping[str, AlarmDefinition] = {definition.name: definition for definition in _ALL}

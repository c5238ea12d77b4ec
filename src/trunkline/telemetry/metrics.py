"""Every metric of the platform, declared once. `docs/reference/metrics.md` lists them, and a test compares the two.

Parts import this module and use its names: `metrics.CALLS_PLACED.labels(carrier="twilio", outcome="accepted").inc()`.
Labels are bounded sets: route templates, names of loops, ids of outbound numbers. Never a person's phone, never a
lead's id.
"""

import platform
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from trunkline import __version__

# A `_created` series for each counter would double the page without use.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)

# From the cost of one script (100 µs) to the command timeout of Valkey (2 s).
SCRIPT_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2)
# From a health check (1 ms) to a large export (10 s).
REQUEST_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
# Healthy lateness is 5-20 ms; a backlog makes it minutes. Both have to be readable.
LATENESS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800)
# Most batches are one event; a replayed dead mailbox may have a thousand.
EVENTS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


class Declared(NamedTuple):
    """A metric as the documentation lists it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


DECLARED: list[Declared] = []
ISSUE_METRICS = frozenset(
    {
        "issues_queued_total",
        "issues_processing_duration_seconds",
        "issues_processed_total",
        "events_per_issue_batch",
        "redis_pending_messages",
    }
)


def _declare(kind: str, name: str, meaning: str, labels: tuple[str, ...]) -> str:
    # Metrics of jobs and of issues have the names that their operators use.
    full_name = name if name.startswith("job_") or name in ISSUE_METRICS else f"trunkline_{name}"
    DECLARED.append(Declared(full_name, kind, labels, meaning))
    return full_name


def _counter(name: str, meaning: str, *labels: str) -> Counter:
    return Counter(_declare("counter", name, meaning, labels), meaning, labels, registry=REGISTRY)


def _gauge(name: str, meaning: str, *labels: str) -> Gauge:
    return Gauge(_declare("gauge", name, meaning, labels), meaning, labels, registry=REGISTRY)


def _histogram(name: str, meaning: str, *labels: str, buckets: Sequence[float]) -> Histogram:
    full_name = _declare("histogram", name, meaning, labels)
    return Histogram(full_name, meaning, labels, buckets=buckets, registry=REGISTRY)


# The process
BUILD_INFO = _gauge("build_info", "Always 1; the version of the platform and of Python.", "version", "python")
BUILD_INFO.labels(__version__, platform.python_version()).set(1)
LOOP_RUNS = _counter("loop_runs_total", "Runs of a loop, failed ones included.", "loop")
LOOP_FAILURES = _counter("loop_failures_total", "Runs of a loop that ended in an error.", "loop")
LOOP_SECONDS = _histogram("loop_duration_seconds", "Time of one run of a loop.", "loop", buckets=REQUEST_S)
HANDLERS_STUCK = _counter(
    "handlers_stuck_total",
    "Handlers of jobs and mailboxes that block the event loop (blocks) or go on after their cancellation "
    "(ignores_cancellation; thread: in a thread of their own). The log names the line.",
    "of",
    "kind",
    "how",
)
LEADER = _gauge("leader", "1 while this process leads under that name, else 0.", "name")
LEADER_ELECTIONS = _counter("leader_elections_total", "Times that this process began to lead.", "name")

# HTTP
HTTP_REQUESTS = _counter(
    "http_requests_total", "Answered requests by route template and status code.", "method", "route", "status"
)
HTTP_SECONDS = _histogram(
    "http_request_duration_seconds",
    "From the request's head to the end of its answer, by route template.",
    "method",
    "route",
    buckets=REQUEST_S,
)

# Calls
LEADS_ACCEPTED = _counter("leads_accepted_total", "Leads that the API has accepted.")
LEADS = _gauge(
    "leads", "Leads by status: BACKLOG as Postgres estimates it, PROCESSING as it counts it.", "status"
)
LEADS_OVERDUE = _gauge(
    "leads_overdue",
    "Leads that are due and not yet called, at most 1,000 of each flow, at the loader's last scan.",
)
SCHEDULE_LEADS = _gauge("schedule_leads", "Leads in Valkey's projection: scheduled, waiting and granted.")
GRANTS = _counter("grants_total", "Leads that were paired with a channel.")
GRANT_WAIT_SECONDS = _histogram(
    "grant_wait_seconds",
    "From a lead's due moment to its grant: how long it waited for its turn and a channel.",
    buckets=LATENESS_S,
)
CALLS_IN_FLIGHT = _gauge(
    "calls_in_flight", "Requests to carriers that this process is sending now: dials and queries."
)
DISPATCH_LATENESS_SECONDS = _histogram(
    "dispatch_lateness_seconds",
    "Lateness of dial requests, from the moment when everything they need was available: lead, window, campaign, "
    "channel, agent and pace. The wait before that is in `trunkline_grant_wait_seconds`.",
    buckets=LATENESS_S,
)
CALLS_PLACED = _counter(
    "calls_placed_total",
    "Requests to dial by the carrier's answer: accepted, rejected, throttled, in_doubt.",
    "carrier",
    "outcome",
)
CARRIER_REFUSALS = _counter(
    "carrier_refusals_total",
    "Dial requests that were refused or not sent, by cause: destination, country, number, account, network, "
    "unknown, or `nobody` if the request was not sent.",
    "carrier",
    "blames",
)
CALL_REPORTS = _counter("call_reports_total", "Reports of agents on their calls, by result.", "result")
CALLS_FINISHED = _counter("calls_finished_total", "Ended calls by outcome.", "carrier", "outcome")
CALLS_BY_PERSON = _counter("calls_answered_by_person_total", "Calls to leads that a person answered.")
CALLS_ABANDONED = _counter(
    "calls_abandoned_total",
    "Of those, calls that found no agent in time: `overdialled` by choice, or `no_agent` where one was reserved or "
    "needed.",
    "cause",
)
ABANDONED_SHARE = _gauge(
    "abandoned_share",
    "The abandonment rate: of the calls to leads that a person answered, the share that found no agent in time, "
    "from 0 to 1, over 10 minutes, 24 hours and 30 days (`10m`, `24h`, `30d`). Of all tenants; the API has that "
    "of a tenant or a campaign.",
    "span",
)
ANSWERED_CALLS = _counter(
    "answered_calls_total",
    "Answered outbound calls, when they ended, by the agent that took them: joined, external, none, unknown.",
    "carrier",
    "agent",
)
ANSWERED_WITHOUT_AGENT = _counter(
    "answered_without_agent_total", "Outbound calls that were answered and had no agent.", "carrier"
)
ATTEMPTS_WRITTEN_OFF = _counter(
    "attempts_given_up_total", "Attempts in doubt that ended as absent or unknown.", "carrier", "state"
)
MASS_FREES_STOPPED = _counter(
    "mass_frees_stopped_total",
    "Times that a reconciler would have freed very many channels at once, and did not.",
)
FALLBACK_DIALS = _counter(
    "fallback_dials_total", "Calls that were dispatched from Postgres alone, without Valkey."
)
INTENTS_REFUSED = _counter(
    "intents_refused_total", "Grants that did not become an attempt, by reason.", "reason"
)
PRECHECKS = _counter(
    "prechecks_total", "Pre-checks at tenants' own systems, by result: passed, failed, deferred.", "answer"
)
CHANNELS_IN_USE = _gauge("channels_in_use", "Channels held, by the number's id.", "number_id")
CHANNELS_MAX = _gauge("channels_max", "Channels that may be held, by the number's id.", "number_id")

# The router
ROUTER_ALLOCATIONS = _counter(
    "router_allocations_total",
    "Requests for a pod by result: kept, allocated, existing, url, noted, none, hold, ended.",
    "result",
)
ROUTER_RESUMPTIONS = _counter(
    "router_resumptions_total",
    "Streams that closed before their calls did: over (the agent had released the call), lost (it gets another agent), "
    "exhausted (it had three).",
    "result",
)
ROUTER_UNKNOWN_TIERS = _counter(
    "router_unknown_tiers_total", "Requests of merchants whose config names a tier that does not exist."
)
ROUTER_PODS = _gauge("router_pods", "Pods of a tier: free, busy and leaving.", "tier")
ROUTER_FREE = _gauge("router_free_capacity", "Calls that the pods of a tier could take now.", "tier")
ROUTER_WAITING = _gauge("router_waiting", "Calls that wait for a pod of a tier.", "tier")
ROUTER_CALLS = _gauge("router_calls", "Calls with an allocated pod.")
ROUTER_RECOVERED = _counter(
    "router_recovered_total", "Pods that were missing from their pool, and were added to it."
)
ROUTER_ORPHANS = _counter("router_orphans_total", "Calls that lost their pod.")
ROUTER_FROZEN = _gauge(
    "router_removals_frozen",
    "1 while the pool manager removes no pods because very many vanished at once, else 0.",
)
ROUTER_JOURNAL_LOST = _counter(
    "router_journal_lost_total", "Allocation notes that were dropped before they could be written."
)
ROUTER_ENDING = _gauge(
    "router_ending",
    "Pods whose heartbeats name a call that has ended or belongs to another pod, or whose handlers hang.",
)
ROUTER_KEPT = _gauge("router_kept", "Slots reserved for dials that are not answered yet.", "tier")

# Webhooks and mailboxes
WEBHOOKS_RECEIVED = _counter("webhooks_received_total", "Webhooks that a carrier sent.", "carrier")
WEBHOOKS_REJECTED = _counter(
    "webhooks_rejected_total",
    "Webhooks refused by reason, such as a signature that does not fit.",
    "carrier",
    "reason",
)
WEBHOOKS_REPEATED = _counter(
    "webhooks_repeated_total", "Webhooks that had come before: sent again, or replayed.", "carrier"
)
ACCOUNT_LOOKS = _counter(
    "account_looks_total",
    "Webhooks whose account or signature was not known, by whether the accounts could be read again: looked, "
    "unavailable.",
    "result",
)
ANSWERS = _counter(
    "answers_total",
    "Requests of carriers for the document of a call, by the response: document, unproven (a document, though the "
    "account could not be read), last_resort (the document built at start, after a failure or timeout), refused.",
    "carrier",
    "got",
)
ANSWER_FALLBACKS = _counter(
    "answer_fallback_requests_total",
    "Requests for a document at the fallback URL: the carrier got none at the first one.",
    "carrier",
)
ANSWER_EVENTS_DROPPED = _counter(
    "answer_events_dropped_total",
    "Events of answers that could not be written: Postgres was away until the queue was full, or the process ended.",
    "carrier",
)
INBOUND_CALLS = _counter(
    "inbound_calls_total",
    "Calls that came in: TAKEN, or why not, such as CAPACITY_REJECTED.",
    "carrier",
    "result",
)
MAILBOX_APPENDED = _counter(
    "mailbox_appended_total", "Events appended; a repeated one is not counted.", "kind"
)
MAILBOX_PROCESSED = _counter("mailbox_processed_total", "Events that a handler has processed.", "kind")
MAILBOX_FAILED = _counter("mailbox_failed_total", "Batches whose handler failed.", "kind")
MAILBOX_QUEUED = _counter("mailbox_queued_total", "Mailboxes that became queued by an append.", "kind")
MAILBOX_COMPLETED = _counter("mailbox_completed_total", "Mailboxes whose events were processed.", "kind")
MAILBOX_SECONDS = _histogram(
    "mailbox_processing_duration_seconds",
    "From the claim of a mailbox to its completion.",
    "kind",
    buckets=LATENESS_S,
)
MAILBOX_BATCH_EVENTS = _histogram(
    "mailbox_batch_events", "Events of one mailbox that were processed together.", "kind", buckets=EVENTS
)
MAILBOX_DIED = _counter("mailbox_died_total", "Mailboxes that failed too often and are dead.", "kind")
MAILBOX_PARKED = _counter(
    "mailbox_parked_total", "Events that a handler could not read and that were parked.", "kind"
)
MAILBOX_APPENDED_TO_DEAD = _counter(
    "mailbox_appended_to_dead_total",
    "Appends to a dead mailbox: no worker processes them until it is replayed.",
    "kind",
)
MAILBOX_PENDING_NUDGES = _gauge(
    "mailbox_pending_nudges", "Wakeups that were read and not yet acknowledged.", "kind"
)
MAILBOXES = _gauge("mailboxes", "Mailboxes that are not idle, as Postgres counts them.", "kind", "status")
MAILBOX_EVENTS_PENDING = _gauge(
    "mailbox_events_pending", "Pending events of these mailboxes.", "kind", "status"
)
MAILBOX_OLDEST_SECONDS = _gauge(
    "mailbox_oldest_seconds", "Age of the oldest pending event.", "kind", "status"
)
MAILBOX_EVENTS_SET_ASIDE = _gauge(
    "mailbox_events_set_aside",
    "Events that were parked within the last 15 minutes, as Postgres counts them.",
    "kind",
)
MAILBOXES_UNHANDLED = _gauge(
    "mailboxes_unhandled",
    "Mailboxes with work of a kind that this worker has no handler for; 0 of those it has. The least over all workers "
    "of an application is what no worker handles.",
    "kind",
)
# The kind `issue` also has the names that its dashboards use.
ISSUES_QUEUED = _counter("issues_queued_total", "Mailboxes of kind `issue` that became queued.")
ISSUES_PROCESSED = _counter("issues_processed_total", "Mailboxes of kind `issue` that were processed.")
ISSUES_SECONDS = _histogram(
    "issues_processing_duration_seconds", "From the claim of an issue to its completion.", buckets=LATENESS_S
)
ISSUE_BATCH_EVENTS = _histogram(
    "events_per_issue_batch", "Events of one issue that were processed together.", buckets=EVENTS
)
ISSUES_PENDING_MESSAGES = _gauge(
    "redis_pending_messages", "Wakeups of issues that were read and not yet acknowledged."
)

# Jobs
JOB_QUEUE_DEPTH = _gauge(
    "job_queue_depth", "Pending jobs, as Postgres counts them; beyond 10,000 of a type it stops.", "job_type"
)
JOB_DEAD_LETTERS = _gauge(
    "job_dead_letters",
    "Dead letters, as Postgres counts them; beyond 1,000 of a type it stops.",
    "job_type",
)
JOBS_CLAIMED = _counter("job_claimed_total", "Jobs that a worker claimed.", "job_type", "worker_id")
JOBS_COMPLETED = _counter(
    "job_completed_total",
    "Runs that ended: success, failed (will be tried again), dead, cancelled, superseded, returned, lease_lost.",
    "job_type",
    "status",
)
JOB_SECONDS = _histogram(
    "job_processing_seconds", "Time in a job's handler.", "job_type", buckets=(*SCRIPT_S, 10, 60, 600)
)
JOB_NOTIFICATIONS_RECEIVED = _counter(
    "job_notification_received_total", "Wakeups that this process received.", "channel"
)
JOBS_FOUND_BY_POLL = _counter(
    "job_poll_scanned_total", "Jobs that were claimed after a poll instead of a wakeup."
)

# Reminders
REMINDER_OCCURRENCES = _counter(
    "reminder_occurrences_total",
    "Occurrences of reminders that became due: made, missed, restored.",
    "result",
)
REMINDERS_PROCESSED = _counter(
    "reminders_processed_total", "Occurrences that have ended, answered or failed."
)
REMINDERS_FAILED = _counter("reminders_failed_total", "Occurrences that ended without an answer.")
REMINDERS_RETRIED = _counter("reminders_retried_total", "Times that an occurrence was deferred to a retry.")
REMINDER_LOCK_CONTENTION = _counter(
    "reminder_lock_contention_total",
    "Times that a scheduler found a due reminder locked by another one. Normal.",
)

# Controls and alarms
CONTROLS = _gauge("controls", "Stops in force or ramping up, by scope.", "scope")
CONTROLS_AGE_SECONDS = _gauge(
    "controls_age_seconds", "Since this process last read the stops from Postgres. Usually under 1."
)
ALARM = _gauge("alarm", "Open alarms of that name. Every alarm there is has a series.", "name")
PROCESSES = _gauge("processes_alive", "Processes that reported lately, by role.", "role")
SCHEDULE_ADDS = _counter(
    "schedule_adds_total", "New leads that were to be scheduled at once, by outcome: ok, failed.", "outcome"
)
WEBHOOKS_LOST = _counter(
    "webhooks_lost_total", "Ends of calls without a webhook, found by querying the carrier."
)
OLDEST_LOOK_SECONDS = _gauge(
    "oldest_look_seconds",
    "The longest time since a live call's last webhook or query of the carrier.",
    "carrier",
)
RECONCILER_FIXES = _counter(
    "reconciler_fixes_total", "Faults that a reconciler found and corrected.", "reconciler"
)
LOADER_LEADS = _counter(
    "loader_leads_total", "Leads that the loader added to Valkey because they were missing."
)
LOADER_LAP_SECONDS = _gauge(
    "loader_lap_seconds", "How long the loader's last scan of all flows took, pauses included."
)
LOADER_JITTER_SECONDS = _histogram(
    "loader_jitter_seconds",
    "How much later than its interval the loader began its next scan: the more leads wait, the wider scans are "
    "spread.",
    buckets=LATENESS_S,
)
CHANNEL_DRIFT = _gauge(
    "channel_drift", "Channels on which Valkey and Postgres differed at the reconciler's last run."
)

# The engines
DB_POOL = _gauge("db_pool_connections", "Connections to Postgres by state: idle, in_use, max.", "state")
BUS_SCRIPT_SECONDS = _histogram(
    "bus_script_duration_seconds", "One script in Valkey, as its caller saw it.", "script", buckets=SCRIPT_S
)


def set_exactly(gauge: Gauge, values: Mapping[str, float]) -> None:
    """Give a gauge of one label exactly these values: other label values are removed."""
    gauge.clear()
    for label, value in values.items():
        gauge.labels(label).set(value)


class PoolStats(Protocol):
    """The figures of a pool of connections."""

    def get_size(self) -> int: ...

    def get_idle_size(self) -> int: ...

    def get_max_size(self) -> int: ...


def watch_pool(pool: PoolStats) -> None:
    """A scrape reads the pool itself, so the gauge is never stale."""
    DB_POOL.labels("idle").set_function(pool.get_idle_size)
    DB_POOL.labels("in_use").set_function(lambda: pool.get_size() - pool.get_idle_size())
    DB_POOL.labels("max").set_function(pool.get_max_size)


def render(accept: str = "") -> tuple[bytes, str]:
    """Body and content type of `/metrics`, in the format that the scraper's Accept header asks for."""
    encode, content_type = choose_encoder(accept)
    return encode(REGISTRY), content_type

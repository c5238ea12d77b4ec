"""Settings of the workers around calls: jobs, mailboxes, reminders, control."""

from typing import Literal

from trunkline.settings.values import Modules, Seconds, SecretUrl, Switch, Text
from trunkline.settings.variables import Group, env, operator_env


class JobSettings(Group):
    """Durable work after a commit."""

    concurrency: int = env("JOB_CONCURRENCY", 100, "Jobs that one process runs at a time.", ge=1, le=10_000)
    lease_s: Seconds = env(
        "JOB_LEASE", "15s", "A worker that does not renew its leases for this long loses its jobs to others."
    )
    renew_s: Seconds = env("JOB_LEASE_RENEW_INTERVAL", "5s", "How often a worker renews its leases.")
    probe_s: Seconds = env(
        "JOB_PROBE_INTERVAL",
        "1s",
        "How often a worker polls all jobs, which bounds the delay after a lost notification.",
    )
    poll_s: Seconds = env(
        "JOB_POLL_INTERVAL",
        "30s",
        "The longest interval between two polls, when the outbox is so full of dead rows that polls are slow.",
    )
    notify: Switch = env(
        "JOB_NOTIFY_ENABLED", "true", "Without notifications only polls and timers find jobs."
    )
    history_s: Seconds = env("JOB_HISTORY_RETENTION", "168h", "How long finished jobs are stored.")
    dead_s: Seconds = env("JOB_DEAD_RETENTION", "720h", "How long dead letters wait for a replay.")
    modules: Modules = operator_env(
        "JOB_MODULES",
        "",
        "Modules that declare job types and recurring jobs of your own, imported at the start.",
    )
    enricher: Text | None = env(
        "CALL_ENRICHER",
        None,
        "Enriches calls that agents report on or carriers recorded: `fetch` stores recording and transcript, "
        "`package.module:factory` names an enricher of yours. Unset, calls are not enriched.",
    )
    enrichment_s: Seconds | None = env(
        "ENRICHMENT_RETENTION",
        None,
        "How long enrichments of calls are stored: recordings, transcripts, data. Unset, as long as the calls.",
    )
    allow_insecure_webhooks: Switch = env(
        "WEBHOOK_ALLOW_INSECURE",
        "false",
        "For development only: webhooks to plain HTTP and to addresses that are not public.",
    )


class MailboxSettings(Group):
    """Folding the events of calls, and how long the events of every mailbox are stored."""

    concurrency: int = env(
        "MAILBOX_CONCURRENCY",
        2,
        "Batches of calls that one process folds at a time. Each holds a connection while it writes.",
        ge=1,
        le=100,
    )
    lease_s: Seconds = env(
        "MAILBOX_LEASE",
        "15s",
        "A worker that does not renew its leases for this long loses its mailboxes to others. It renews three times "
        "in it.",
    )
    failures_max: int = env(
        "MAILBOX_FAILURES_MAX", 10, "After so many failures in a row a mailbox is dead.", ge=1, le=1000
    )
    keep_s: Seconds = env(
        "MAILBOX_RETENTION",
        "168h",
        "How long processed events are stored. A repeated event is recognised for as long.",
    )


class Reminders(Group):
    """Making the occurrences of reminders, and how often each is tried."""

    poll_s: Seconds = env(
        "SCHEDULER_POLL_INTERVAL_SECONDS", "60s", "How often the scheduler queries due reminders."
    )
    batch_max: int = env(
        "SCHEDULER_BATCH_SIZE",
        10,
        "The maximum of reminders of one query. A full one is repeated at once.",
        ge=1,
        le=1000,
    )
    retry_base_s: Seconds = env(
        "RETRY_BASE_DELAY_SECONDS",
        "60s",
        "How long any lead waits after its first failed attempt, doubled after each further one, unless a policy "
        "sets another delay. `1s` to `24h`.",
        ge=1,
        le=86_400,
    )
    attempts_max: int = env(
        "RETRY_MAX_ATTEMPTS",
        3,
        "Attempts of an occurrence, unless its reminder sets another number.",
        ge=1,
        le=20,
    )


class ControlSettings(Group):
    """Runtime control of the platform."""

    restore_guard: Literal["strict", "witness"] = env(
        "RESTORE_GUARD",
        "strict",
        "When no witness knows the last beat of Postgres and it has leads: `strict` starts with the kill switch on, "
        "`witness` goes on.",
    )
    flag_provider: Text | None = env(
        "FEATURE_FLAG_PROVIDER",
        None,
        "`package.module:factory` of an OpenFeature provider. Unset, flags are those of the API.",
    )
    alarm_webhook_url: SecretUrl | None = operator_env(
        "ALARM_WEBHOOK_URL",
        None,
        "The URL to which any process announces that an alarm was raised, is ongoing or was cleared. Unset, "
        "alarms are not announced.",
    )
    alarm_repeat_s: Seconds = env(
        "ALARM_REPEAT", "1h", "How often an ongoing alarm is announced to the webhook again."
    )

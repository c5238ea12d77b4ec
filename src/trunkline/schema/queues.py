"""Queues: jobs, mailboxes and their events, and what operators do with them."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from trunkline.schema.controls import Reason
from trunkline.schema.fields import (
    CREATED_AT,
    ITS_ID,
    OF_MERCHANT,
    OF_RESELLER,
    Moment,
    ObjectId,
    Text,
    TextRule,
    about,
    body,
)
from trunkline.schema.mailbox_kinds import KindName
from trunkline.states import JobStatus, LeadStatus, MailboxStatus, QueueKind, QueueStatus

# How many dead letters one request replays, and mailboxes one renames.
BATCH_MAX = 1_000
# A count stops here: enough to show that it is bad, and counted in milliseconds.
COUNT_MAX = 1_000
# Events in the response for one mailbox. Further ones are in a list of their own.
EVENTS_SHOWN = 50
KEY_BYTES_MAX = 500
SEQ_MAX = 2**63 - 1
UNIQUE_KEY_MAX = 200

JobTypeName = Annotated[Text, TextRule(max_length=50)]
_JobKey = Annotated[Text, TextRule(min_length=1, max_length=UNIQUE_KEY_MAX)]
_EventText = Annotated[Text, TextRule(min_length=1, max_length=KEY_BYTES_MAX)]

_TYPE = about("A type of job.")
_KIND = about("A kind of mailbox.")
_PROGRESS = about("From 0 to 1, as the job reports it.")
_NOTE = about("What the job says of its progress.")
_RESULT = about("What the job returned.")
_LAST_ERROR = about("Why it failed last.")
_REASON = about("The reason, for the audit log.")
_OWNER = about("The owner. Left out: that of the key.")
_REPEAT = f"At most {BATCH_MAX} per request: repeat it until it is 0."


def _one_of(
    words: type[JobStatus | MailboxStatus | QueueKind | QueueStatus], description: str
) -> dict[str, Any]:
    return about(description, json_schema_extra={"enum": [*words]})


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a type of job, waiting or ended."""

    id: UUID = field(metadata=ITS_ID)
    job_type: str = field(metadata=_TYPE)
    status: str = field(metadata=_one_of(JobStatus, "FAILED: it is a dead letter."))
    outcome: str | None = field(metadata=about("How it ended: succeeded, cancelled, superseded or dead."))
    priority: int = field(metadata=about("1 runs first, 99 last, within a type."))
    run_at: datetime | None = field(metadata=about("When it runs at the earliest; null once it has ended."))
    created_at: datetime = field(metadata=CREATED_AT)
    started_at: datetime | None = field(metadata=about("When its last run began."))
    finished_at: datetime | None = field(metadata=about("When it ended. null: it has not."))
    attempt_count: int = field(metadata=about("How often it has run."))
    max_attempts: int = field(metadata=about("How often it runs at most."))
    locked_by: str | None = field(metadata=about("The worker of its last run."))
    lease_expires_at: datetime | None = field(metadata=about("When the worker that runs it loses it."))
    unique_key: str | None = field(metadata=about("Of the waiting jobs of its type, one has this key."))
    concurrency_key: str | None = field(metadata=about("Its type limits how many of one key run at once."))
    cancel_requested: bool = field(metadata=about("It was cancelled while it ran."))
    last_error_code: str | None = field(metadata=about("Why its last run failed, as a word."))
    last_error_message: str | None = field(metadata=about("Why its last run failed."))
    reseller_id: str | None = field(metadata=OF_RESELLER)
    merchant_id: str | None = field(metadata=OF_MERCHANT)


@dataclass(frozen=True, slots=True)
class JobDetail(Job):
    """A job with its payload and result."""

    payload: Any = field(metadata=about("null once it is done."))
    result: Any = field(metadata=_RESULT)
    progress: float | None = field(metadata=_PROGRESS)
    note: str | None = field(metadata=_NOTE)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job has come."""

    id: UUID = field(metadata=ITS_ID)
    status: str = field(metadata=_one_of(JobStatus, "FAILED: it is a dead letter."))
    progress: float | None = field(metadata=_PROGRESS)
    note: str | None = field(metadata=_NOTE)
    result: Any = field(metadata=_RESULT)


@dataclass(frozen=True, slots=True)
class JobTypeState:
    """The counts of a type of job, and whether it is paused."""

    job_type: str = field(metadata=_TYPE)
    pending: int = field(metadata=about(f"Counted up to {COUNT_MAX} of a kind."))
    dead: int = field(metadata=about("Dead letters, counted up to the same number."))
    paused_reason: str | None = field(metadata=about("null: it is not paused."))
    paused_by: str | None = field(metadata=about("Who paused it."))
    paused_at: datetime | None = field(metadata=about("When it was paused."))


@dataclass(frozen=True, slots=True)
class JobSchedule:
    """A recurring job."""

    name: str = field(metadata=about("Its name, unique."))
    job_type: str = field(metadata=_TYPE)
    rule: str = field(metadata=about("Such as `every 3600` or `cron 30 9 * * mon-fri`."))
    timezone: str = field(metadata=about("The time zone of the rule."))
    next_at: datetime = field(metadata=about("When it is enqueued next."))
    last_at: datetime | None = field(metadata=about("When it was enqueued last."))


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Enqueues a job."""

    __pydantic_config__ = body(
        {"job_type": "send_report", "payload": {"merchant": "acme"}, "unique_key": "acme"}
    )

    job_type: Annotated[JobTypeName, TextRule(min_length=1)] = field(
        metadata=about("A type that allows it: `over_http`.")
    )
    payload: Any = field(default_factory=dict, metadata=about("As the job type declares it."))
    _: KW_ONLY
    run_at: Moment | None = field(default=None, metadata=about("Run not before this time. In the past: now."))
    priority: int | None = field(
        default=None,
        metadata=about("1 runs first, 99 last. Left out: the type's priority.", ge=1, le=99),
    )
    unique_key: _JobKey | None = field(
        default=None,
        metadata=about(
            "The item of the job, `item_id` in log lines. While a job of this type and key waits, no other one is "
            "enqueued."
        ),
    )
    concurrency_key: _JobKey | None = field(
        default=None,
        metadata=about("The concurrency key: the type limits how many jobs of one key run at once."),
    )
    max_attempts: int | None = field(
        default=None, metadata=about("The maximum number of runs. Left out: the type's.", ge=1, le=1000)
    )
    reseller_id: ObjectId | None = field(default=None, metadata=_OWNER)
    merchant_id: ObjectId | None = field(default=None, metadata=_OWNER)


@dataclass(frozen=True, slots=True)
class NewExport:
    """Orders an export."""

    __pydantic_config__ = body({"status": "FINISHED"})

    merchant_id: ObjectId | None = field(default=None, metadata=about("Only leads of this merchant."))
    status: LeadStatus | None = field(default=None, metadata=about("Only leads with this status."))
    campaign_id: UUID | None = field(default=None, metadata=about("Only leads of this campaign."))


@dataclass(frozen=True, slots=True)
class MailboxSummary:
    """The mailboxes of a kind that have one status."""

    kind: str = field(metadata=_KIND)
    status: str = field(metadata=_one_of(MailboxStatus, "idle: no event waits."))
    mailboxes: int = field(metadata=about(f"Counted up to {COUNT_MAX}."))
    events: int = field(metadata=about("Pending events of the counted mailboxes."))
    oldest_s: float = field(metadata=about("The longest time that one of them has waited."))


@dataclass(frozen=True, slots=True)
class MailboxState:
    """An entity, and how many of its events are processed."""

    kind: str = field(metadata=_KIND)
    key: str = field(metadata=about("The entity's name, unique within the kind."))
    processing_status: str = field(metadata=_one_of(MailboxStatus, "idle: no event waits."))
    pending: int = field(metadata=about("Pending events."))
    appended: int = field(metadata=about("The number of its last event."))
    processed: int = field(metadata=about("Every event up to this number is processed or parked."))
    failures: int = field(metadata=about("Failures in a row."))
    last_error: str | None = field(metadata=_LAST_ERROR)
    locked_by: str | None = field(metadata=about("The worker that has claimed it."))
    claimable_at: datetime | None = field(
        metadata=about("If queued, when it is due; if processing, when its lease ends.")
    )
    processing_started_at: datetime | None = field(metadata=about("When it was claimed."))
    last_processed_at: datetime | None = field(metadata=about("When its events were last processed."))
    created_at: datetime = field(metadata=CREATED_AT)


@dataclass(frozen=True, slots=True)
class MailboxEvent:
    """An event of a mailbox."""

    seq: int = field(metadata=about("The event's number in its mailbox."))
    dedupe_key: str = field(metadata=about("A repeated key is the same event."))
    type: str = field(metadata=about("What happened."))
    payload: dict[str, Any] = field(metadata=about("Any JSON object."))
    created_at: datetime = field(metadata=CREATED_AT)
    processed_at: datetime | None = field(metadata=about("null: it waits."))
    error: str | None = field(metadata=about("Why it was parked."))


@dataclass(frozen=True, slots=True)
class MailboxDetail(MailboxState):
    """A mailbox with its first events."""

    events: list[MailboxEvent] = field(metadata=about(f"The first {EVENTS_SHOWN} pending events."))


@dataclass(frozen=True, slots=True)
class NewMailboxEvent:
    """Appends an event to a mailbox."""

    __pydantic_config__ = body(
        {"type": "comment.created", "payload": {"by": "ada"}, "dedupe_key": "delivery-4711"}
    )

    type: _EventText = field(metadata=about("What happened."))
    payload: dict[str, Any] = field(default_factory=dict, metadata=about("Any JSON object."))
    dedupe_key: _EventText | None = field(
        default=None,
        metadata=about(
            "A repeated key is the same event. Without a key, a repeated request appends another event."
        ),
    )
    urgent: bool | None = field(
        default=None,
        metadata=about("`false`: the event may wait for the next sweep of mailboxes, within a second."),
    )


@dataclass(frozen=True, slots=True)
class EventReceipt:
    """Where an event was appended."""

    kind: str = field(metadata=_KIND)
    key: str = field(metadata=about("The entity's name, unique within the kind."))
    seq: int = field(metadata=about("The event's number in its mailbox."))
    created: bool = field(metadata=about("`false`: the event was appended before."))


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The jobs of one type, or the mailboxes of one kind."""

    kind: str = field(metadata=_one_of(QueueKind, "Of jobs or of mailboxes."))
    name: str = field(metadata=about("The type of its jobs, or the kind of its mailboxes."))
    waiting: int = field(metadata=about(f"Counted up to {COUNT_MAX}, like the others."))
    running: int | None = field(metadata=about("null: running jobs are not counted."))
    dead: int = field(metadata=about("Dead letters, counted up to the same number."))
    paused_reason: str | None = field(metadata=about("null: it is not paused. Mailboxes cannot be."))


@dataclass(frozen=True, slots=True)
class QueueItem:
    """A job or a mailbox."""

    kind: str = field(metadata=_one_of(QueueKind, "Of jobs or of mailboxes."))
    name: str = field(metadata=about("The name of its queue."))
    id: str = field(metadata=about("The id of a job, or the key of a mailbox."))
    status: str = field(metadata=_one_of(QueueStatus, "done: it has ended, or no event waits."))
    attempts: int = field(metadata=about("Runs of a job; failures in a row of a mailbox."))
    last_error: str | None = field(metadata=_LAST_ERROR)
    locked_by: str | None = field(metadata=about("The worker that has it, or had it last."))
    due_at: datetime | None = field(metadata=about("When it runs at the earliest, or when its lease ends."))
    created_at: datetime = field(metadata=CREATED_AT)


@dataclass(frozen=True, slots=True)
class QueueReason:
    """Names a reason."""

    __pydantic_config__ = body({"reason": "The receiver is being repaired"})

    reason: Reason = field(metadata=_REASON)


@dataclass(frozen=True, slots=True)
class JobsReplay:
    """Names the dead letters to run again."""

    __pydantic_config__ = body({"job_type": "deliver_webhook"})

    job_type: JobTypeName | None = field(default=None, metadata=about("Only dead letters of this type."))


@dataclass(frozen=True, slots=True)
class QueueReplayed:
    """How many dead letters run again."""

    replayed: int = field(metadata=about(_REPEAT))
    superseded: int = field(metadata=about("Ended, because a newer job with the same unique key waits."))


@dataclass(frozen=True, slots=True)
class MailboxReplay:
    """Processes a mailbox again."""

    __pydantic_config__ = body({"reason": "The handler is fixed"})

    reason: Reason = field(metadata=_REASON)
    seq: int | None = field(
        default=None,
        metadata=about("One parked event. Left out: the dead mailbox.", ge=1, le=SEQ_MAX),
    )


@dataclass(frozen=True, slots=True)
class MailboxesReplayed:
    """How many mailboxes are processed again."""

    replayed: int = field(metadata=about(_REPEAT))


@dataclass(frozen=True, slots=True)
class EventToPark:
    """Names an event to park."""

    __pydantic_config__ = body({"seq": 7, "reason": "Its format is not supported"})

    seq: int = field(metadata=about("The number of a pending event.", ge=1, le=SEQ_MAX))
    reason: Reason = field(metadata=about("The reason, stored with the event and in the audit log."))


@dataclass(frozen=True, slots=True)
class MailboxesRename:
    """Renames a kind."""

    __pydantic_config__ = body({"to": "ticket", "reason": "Its handler has another name"})

    to: KindName = field(metadata=about("The new kind."))
    reason: Reason = field(metadata=_REASON)


@dataclass(frozen=True, slots=True)
class MailboxesRenamed:
    """How many mailboxes have the new kind."""

    renamed: int = field(metadata=about(_REPEAT))
    left: bool = field(metadata=about("Whether mailboxes of the old kind are left."))

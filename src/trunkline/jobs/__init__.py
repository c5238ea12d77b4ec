"""Jobs: durable work after a commit. See `outbox` for the way in, `worker` for the way out, `service` for the whole.

from trunkline.jobs import Cancel, Done, Failed, Policy, Run, Snooze, job, recurring
"""

from trunkline.jobs.errors import InvalidJob, PayloadRefused, UnknownJobType
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Cancel, Done, Failed, Outcome, Policy, Snooze
from trunkline.jobs.recurring import Recurring, recurring
from trunkline.jobs.registry import JobType, Registry, declared, job
from trunkline.jobs.run import LeaseLost, Run

__all__ = [
    "Cancel",
    "Done",
    "Failed",
    "InvalidJob",
    "JobType",
    "LeaseLost",
    "Outbox",
    "Outcome",
    "PayloadRefused",
    "Policy",
    "Recurring",
    "Registry",
    "Run",
    "Snooze",
    "UnknownJobType",
    "declared",
    "job",
    "recurring",
]

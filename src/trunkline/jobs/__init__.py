"""Jobs: durable work after a commit. See `client` for an application's way in and out, `outbox` and `worker` for the
platform's, `service` for all that a worker runs.

from trunkline.jobs import Cancel, Done, Failed, Jobs, Policy, Run, Snooze, job, recurring
"""

from trunkline.errors import NotInTransaction
from trunkline.jobs.client import Jobs
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
    "Jobs",
    "LeaseLost",
    "NotInTransaction",
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

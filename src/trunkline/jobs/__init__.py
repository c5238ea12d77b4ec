"""Jobs: durable work after a commit. `client` is the interface of an application, `outbox` and `worker` are those of
the platform, `service` is everything that a worker runs.

from trunkline.jobs import Cancel, Done, Failed, Jobs, Policy, Run, Snooze, job, recurring
"""

from trunkline.errors import NotInTransaction
from trunkline.jobs.client import Jobs
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Cancel, Done, Failed, Outcome, Policy, Snooze
from trunkline.jobs.recurring import Recurring, recurring
from trunkline.jobs.registry import (
    InvalidJob,
    JobType,
    PayloadRefused,
    Registry,
    UnknownJobType,
    declared,
    job,
)
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

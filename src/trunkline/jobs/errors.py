"""What an application can do wrong with a job. Each message says what to do instead.

InvalidJob
├── UnknownJobType    nobody declared a type of this name
└── PayloadRefused    it cannot be written as JSON, does not fit its type, or is too large
NotInTransaction      the job would be committed by itself
"""

from trunkline.errors import NotInTransaction, TrunklineError

__all__ = ["InvalidJob", "NotInTransaction", "PayloadRefused", "UnknownJobType"]


class InvalidJob(TrunklineError):
    """The job was not enqueued, and nothing of the caller's transaction was touched."""


class UnknownJobType(InvalidJob):
    pass


class PayloadRefused(InvalidJob):
    pass

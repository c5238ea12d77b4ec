"""Errors of an application that enqueues a job. Each message says what to do instead.

InvalidJob
├── UnknownJobType    no type of this name is declared
└── PayloadRefused    the payload cannot be written as JSON, does not fit its type, or is too large
NotInTransaction      the job would be committed by itself
"""

from trunkline.errors import NotInTransaction, TrunklineError

__all__ = ["InvalidJob", "NotInTransaction", "PayloadRefused", "UnknownJobType"]


class InvalidJob(TrunklineError):
    """The job was not enqueued, and the caller's transaction is untouched."""


class UnknownJobType(InvalidJob):
    pass


class PayloadRefused(InvalidJob):
    pass

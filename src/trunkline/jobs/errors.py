"""What an application can do wrong with a job. Each message says what to do instead.

InvalidJob
├── UnknownJobType    nobody declared a type of this name
└── PayloadRefused    it cannot be written as JSON, does not fit its type, or is too large
"""

from trunkline.errors import TrunklineError


class InvalidJob(TrunklineError):
    """The job was not enqueued, and nothing of the caller's transaction was touched."""


class UnknownJobType(InvalidJob):
    pass


class PayloadRefused(InvalidJob):
    pass

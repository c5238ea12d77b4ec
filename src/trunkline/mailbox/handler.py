"""What a handler is given, and what it gives back.

A handler gets mailboxes of its kind, each with its pending events in order. It works on them for as long as it needs,
with no transaction open, and returns what is to be written. That is written in the transaction that completes the
mailboxes, so effects and completion are one. If the lease was lost meanwhile, nothing is written.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trunkline.errors import TrunklineError
from trunkline.store.database import Connection
from trunkline.store.mailboxes import Event, NewEvent, Parked

# The pending events of each mailbox, by its key.
Batch = Mapping[str, Sequence[Event]]
AfterCommit = Callable[[], Awaitable[None]]
# Runs inside the completing transaction. It must not touch mailboxes, which are locked after it and sorted.
Write = Callable[[Connection], Awaitable[AfterCommit | None]]


class BadHandler(TrunklineError, TypeError):
    """A handler that cannot be run, or that hands over a function which cannot."""


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a batch, if it is more than one function that writes."""

    write: Write | None = None
    # Events that nobody can read. They are set aside with their error, and the rest of the mailbox goes on.
    parked: Sequence[Parked] = ()
    # Events for other mailboxes, appended in the same transaction.
    send: Sequence[NewEvent] = ()


class Handler(Protocol):
    """Handles mailboxes of one kind."""

    @property
    def kind(self) -> str: ...

    async def handle(self, batch: Batch) -> Write | Done | None:
        """Work out what the events mean. It may be called again with the same events: only what it returns happens
        once. An exception puts the mailbox back for later, with all its events and those that join them."""
        ...


def as_done(answer: Write | Done | None) -> Done:
    return answer if isinstance(answer, Done) else Done(write=answer)

"""The arguments and results of handlers.

A handler gets mailboxes of its kind, each with its pending events in order. It runs for as long as it needs, with no
transaction open, and returns a function that writes its effects. The worker calls that function in the transaction that
completes the mailboxes, so both are committed or neither is. If the lease was lost meanwhile, nothing is written.
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
# Runs inside the completing transaction. It must not touch mailboxes, which are locked after it, in sorted order.
Write = Callable[[Connection], Awaitable[AfterCommit | None]]


class BadHandler(TrunklineError, TypeError):
    """A handler that cannot be run, or that returns a function which cannot."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a batch, if it is more than one function that writes."""

    write: Write | None = None
    # Events that the handler cannot read. They are set aside with their error, and the mailbox goes on without them.
    parked: Sequence[Parked] = ()
    # Events for other mailboxes, appended in the same transaction.
    send: Sequence[NewEvent] = ()


class Handler(Protocol):
    """Handles mailboxes of one kind."""

    @property
    def kind(self) -> str: ...

    async def handle(self, batch: Batch) -> Write | Done | None:
        """Process the events. It may be called again with the same events: only the write that it returns happens once.
        After an exception the mailbox is retried later, with all its events and those appended meanwhile."""
        ...

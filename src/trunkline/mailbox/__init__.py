"""Mailboxes: events are triggers, the entity is the unit.

`inbox` appends events, `worker` claims mailboxes, `processing` runs the handler on a claimed one, and `handler` defines
what a handler gets and returns. `application` puts them together for any application.
"""

from trunkline.errors import NotInTransaction
from trunkline.mailbox.application import Mailbox, Mailboxes, MailboxHandler, mailbox, new_event
from trunkline.mailbox.handler import AfterCommit, Batch, Done, Handler, Write
from trunkline.mailbox.inbox import BadEvent, Inbox, InboxLimits
from trunkline.mailbox.processing import FailureRule
from trunkline.mailbox.worker import MailboxWorker, WorkerLimits
from trunkline.store.mailboxes import Event, NewEvent, Parked, Receipt

__all__ = [
    "AfterCommit",
    "BadEvent",
    "Batch",
    "Done",
    "Event",
    "FailureRule",
    "Handler",
    "Inbox",
    "InboxLimits",
    "Mailbox",
    "MailboxHandler",
    "MailboxWorker",
    "Mailboxes",
    "NewEvent",
    "NotInTransaction",
    "Parked",
    "Receipt",
    "WorkerLimits",
    "Write",
    "mailbox",
    "new_event",
]

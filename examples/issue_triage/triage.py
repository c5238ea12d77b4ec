"""The two handlers: an issue's events become facts and a reply; a reply is posted.

The reply is decided and its posting is ordered in one transaction with the completion, so an event is answered by one
reply, whoever crashes where. Posting has a mailbox of its own: a tracker that is down delays replies and nothing else.
"""

from collections.abc import Sequence

from examples.issue_triage import store
from examples.issue_triage.issues import fold
from examples.issue_triage.responder import Responder
from examples.issue_triage.tracker import Tracker
from trunkline.mailbox import Done, Mailbox, MailboxHandler, NewEvent, Write, mailbox
from trunkline.store.database import Connection, Database

ISSUE = "issue"
REPLY = "reply"


def handlers(database: Database, responder: Responder, tracker: Tracker) -> Sequence[MailboxHandler]:
    @mailbox(ISSUE, concurrency=20)
    async def triage(box: Mailbox) -> Done:
        """Look at the issue, see everything that happened, decide what to reply."""
        folded = fold(await store.load(database, box.key), box.events)
        body = await responder.respond(folded.issue, folded.news) if folded.news else None
        upto = box.events[-1].seq

        async def write(tx: Connection) -> None:
            await store.save(tx, box.key, folded.issue)
            if body is not None:
                await store.add_reply(tx, box.key, upto, body)

        send = [] if body is None else [_reply(box.key, upto, body)]
        is_known = len(folded.parked) < len(box.events)
        return Done(write=write if is_known else None, parked=folded.parked, send=send)

    @mailbox(REPLY, concurrency=5)
    async def post(box: Mailbox) -> Write:
        """At least once; the mark makes it once."""
        for event in box.events:
            mark = f"triage {box.key} {event.payload['upto']}"
            await tracker.comment(box.key, mark, event.payload["body"])

        async def write(tx: Connection) -> None:
            for event in box.events:
                await store.mark_posted(tx, box.key, event.payload["upto"])

        return write

    return [triage, post]


def _reply(key: str, upto: int, body: str) -> NewEvent:
    return NewEvent(REPLY, key, f"upto {upto}", "reply", {"upto": upto, "body": body})

"""What the carrier reports is folded into facts, and what follows from them is settled."""

from dataclasses import replace

from trunkline.dispatch.calls import LIMITS, CallFold
from trunkline.mailbox.processing import FailureRule
from trunkline.mailbox.worker import MailboxWorker
from trunkline.parts.dialing import Dialing
from trunkline.parts.following import Following
from trunkline.parts.ground import Ground


def call_worker(ground: Ground, dialing: Dialing, following: Following) -> MailboxWorker:
    mailboxes = ground.settings.mailboxes
    limits = replace(
        LIMITS,
        concurrency=mailboxes.concurrency,
        lease_s=mailboxes.lease_s,
        failure=FailureRule(failures_max=mailboxes.failures_max),
    )
    fold = CallFold(ground.bus, dialing.settler, following.enrichment)
    return MailboxWorker(ground.database, ground.bus, fold, ground.settings.identity, limits)

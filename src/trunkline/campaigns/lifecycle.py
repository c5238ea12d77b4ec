"""Starting, pausing, resuming and stopping a campaign.

A stop in `controls`, set at the merchant's level, holds a campaign: the dialers read it within a second, and the intent
checks it too. So a draft is held from its first lead on, and a pause needs nothing more.
"""

from datetime import datetime
from typing import Literal

from trunkline.control.controls import campaign_subject
from trunkline.store import campaigns, controls
from trunkline.store.campaigns import StoredCampaign
from trunkline.store.controls import Level, NewStop, Scope
from trunkline.store.database import Connection

Action = Literal["start", "pause", "resume", "stop"]

# The states from which each action moves on, and those in which it is done already. COMPLETED: it runs, and none of its
# leads is left to call. It has no stop: added leads are called.
FROM: dict[Action, frozenset[str]] = {
    "start": frozenset({"DRAFT"}),
    "pause": frozenset({"RUNNING", "COMPLETED"}),
    "resume": frozenset({"PAUSED"}),
    "stop": frozenset({"DRAFT", "RUNNING", "PAUSED", "COMPLETED"}),
}
DONE: dict[Action, frozenset[str]] = {
    "start": frozenset({"RUNNING", "COMPLETED"}),
    "pause": frozenset({"PAUSED"}),
    "resume": frozenset({"RUNNING", "COMPLETED"}),
    "stop": frozenset({"STOPPING", "STOPPED"}),
}


async def hold(
    tx: Connection, campaign: StoredCampaign, by: str, reason: str, until: datetime | None = None
) -> None:
    """None of its leads is called until then, or until it is released."""
    subject = campaign_subject(campaign.merchant_id, campaign.id)
    await controls.stop(
        tx,
        NewStop(
            Scope.CAMPAIGN, subject, Level.MERCHANT, reason, by, campaign.tenant, ramp_s=0, ends_at=until
        ),
    )


async def let_go(tx: Connection, campaign: StoredCampaign, by: str, reason: str, ramp_s: int = 0) -> None:
    subject = campaign_subject(campaign.merchant_id, campaign.id)
    await controls.resume(tx, Scope.CAMPAIGN, subject, Level.MERCHANT, reason=reason, by=by, ramp_s=ramp_s)


async def run(tx: Connection, campaign: StoredCampaign, by: str, *, ramp_s: int) -> StoredCampaign:
    """Start or resume. Before its start time it is held until then."""
    if campaign.starts_at is not None and campaign.starts_at > campaign.now:
        await hold(tx, campaign, by, "not before its start", campaign.starts_at)
    else:
        await let_go(tx, campaign, by, "running", ramp_s)
    return await campaigns.move(tx, campaign.id, "RUNNING")


async def pause(tx: Connection, campaign: StoredCampaign, by: str, reason: str) -> StoredCampaign:
    await hold(tx, campaign, by, reason)
    return await campaigns.move(tx, campaign.id, "PAUSED")


async def stop(
    tx: Connection, campaign: StoredCampaign, by: str, reason: str, *, hang_up: bool
) -> StoredCampaign:
    """From now on none of its leads is called; the keeper ends them."""
    await hold(tx, campaign, by, reason)
    return await campaigns.move(tx, campaign.id, "STOPPING", reason=reason, hang_up=hang_up)

"""Maintenance of campaigns: applies their changes to their leads, sums up their counts, exports their shares."""

from uuid import UUID

from trunkline.campaigns import lifecycle
from trunkline.loops.base import Loop
from trunkline.states import LeadStatus
from trunkline.store import abandonment, campaigns, lead_edits
from trunkline.store.campaigns import StoredCampaign
from trunkline.store.database import Connection, Database
from trunkline.store.tenants import PLATFORM
from trunkline.telemetry import metrics

CAMPAIGNS_MAX = 100
# Locked and changed in one transaction: some 50 ms.
PAGE = 2000
# The audit log and the metrics have the names of earlier versions.
ACTOR = "campaign keeper"
# Changes of counts. 500 are read in well under a millisecond; a few hundred are a few seconds of a busy campaign.
FRESH_MIN = 500
FRESH_MAX = 20_000


class CampaignMaintenance(Loop):
    """Applies a change of a campaign to its leads, page by page, and completes a campaign when none of its leads is
    left to call.

    A campaign has a million leads, so the request itself does none of this. Each page is a transaction of its own,
    under the campaign's lock; a process that dies leaves a campaign that is still unsettled, and another goes on.
    """

    name = "campaign_keeper"

    def __init__(self, database: Database, interval_s: float = 1.0, page: int = PAGE):
        super().__init__(interval_s)
        self._database = database
        self._page = page

    async def run_once(self) -> int:
        async with self._database.connection() as conn:
            campaign_ids = await campaigns.unsettled(conn, limit=CAMPAIGNS_MAX)
        for campaign_id in campaign_ids:
            while await self._settle(campaign_id) and not self.stopping:
                pass
        return len(campaign_ids)

    async def _settle(self, campaign_id: UUID) -> bool:
        """Whether there is more to do at once."""
        async with self._database.transaction() as tx:
            campaign = await campaigns.claim(tx, campaign_id)
            if campaign is None:
                return False
            if campaign.status == "STOPPING":
                return await self._end_leads(tx, campaign)
            if campaign.status == "COMPLETED":
                if not await campaigns.is_done(tx, campaign):
                    await campaigns.move(tx, campaign.id, "RUNNING")
                return False
            if campaign.ends_at is not None and campaign.ends_at <= campaign.now:
                await lifecycle.stop(tx, campaign, ACTOR, "its end has come", hang_up=False)
                return True
            if campaign.status in ("DRAFT", "PAUSED"):
                await lifecycle.hold(tx, campaign, ACTOR, campaign.status.lower())
            if campaign.status == "RUNNING" and await campaigns.is_done(tx, campaign):
                await campaigns.move(tx, campaign.id, "COMPLETED")
            if campaign.given == campaign.gives:
                return False
            more = await campaigns.give(tx, campaign, limit=self._page)
            if not more:
                await campaigns.mark_given(tx, campaign.id)
            return more

    async def _end_leads(self, tx: Connection, campaign: StoredCampaign) -> bool:
        lead_ids = await campaigns.waiting(tx, campaign, limit=self._page)
        if not lead_ids:
            await lifecycle.let_go(tx, campaign, ACTOR, "stopped")
            await campaigns.move(tx, campaign.id, "STOPPED")
            return False
        reason = f"campaign stopped: {campaign.stop_reason}"
        locked = await lead_edits.lock(tx, campaign.tenant, lead_ids)
        called = [lead.id for lead in locked.values() if lead.status == LeadStatus.PROCESSING]
        await lead_edits.abort(tx, lead_ids, reason)
        if called:
            await lead_edits.request_cancel(tx, called, reason, hang_up=campaign.stop_hangs_up)
        return True


class CampaignCounter(Loop):
    """Folds the changes of leads' states and of calls' outcomes into the sums of their campaigns.

    A transaction that moves leads or settles calls only inserts the change. Without this loop the counts would stay
    right, and take longer to read with every call.
    """

    name = "campaign_counts"

    def __init__(self, database: Database, interval_s: float = 1.0, fresh_min: int = FRESH_MIN):
        super().__init__(interval_s)
        self._database = database
        self._fresh_min = fresh_min

    async def run_once(self) -> int:
        async with self._database.transaction() as tx:
            leads = await campaigns.fold_counts(tx, fresh_min=self._fresh_min, fresh_max=FRESH_MAX)
        async with self._database.transaction() as tx:
            return leads + await abandonment.fold(tx, fresh_min=self._fresh_min, fresh_max=FRESH_MAX)


class AbandonmentGauges(Loop):
    """Exports the share of abandoned calls as a metric: the counters of calls restart with each process, and cannot
    give it over 30 days."""

    name = "abandonment_gauges"

    def __init__(self, database: Database, interval_s: float = 10.0):
        super().__init__(interval_s)
        self._database = database

    async def run_once(self) -> int:
        async with self._database.connection() as conn:
            measured = await abandonment.measured_by_tenant(conn, PLATFORM)
        spans = {"10m": measured.last_10m, "24h": measured.last_24h, "30d": measured.last_30d}
        shares = {span: counted.abandoned_share for span, counted in spans.items()}
        # A span in which no person answered has no share.
        metrics.set_exactly(
            metrics.ABANDONED_SHARE, {span: share for span, share in shares.items() if share is not None}
        )
        return len(shares)

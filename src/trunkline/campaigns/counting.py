"""Counts campaigns: folds the changes of their leads' states and of their calls' outcomes into sums.

A transaction that moves leads or settles calls only inserts the change. Without this loop the counts would stay right,
and take longer to read with every call.
"""

from trunkline.loops.base import Loop
from trunkline.store import abandonment, campaigns
from trunkline.store.database import Database

# Read in well under a millisecond. A few hundred changes are a few seconds of a busy campaign.
FRESH_MIN = 500
FRESH_MAX = 20_000


class CampaignCounter(Loop):
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

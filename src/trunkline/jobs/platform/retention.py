"""Removes exports whose jobs are gone, and enrichments of calls after their retention.

A file is removed before the row that names it, so that a crash in between leaves no file behind. Safe to run in many
processes.
"""

import asyncio

from trunkline.jobs.platform.files import FileStore
from trunkline.loops.base import Loop
from trunkline.store import enrichments
from trunkline.store.database import Database
from trunkline.telemetry import get_logger

log = get_logger(__name__)

CHUNK = 500
# The age at which a draft is left over from a worker that died. No job writes for longer.
DRAFT_S = 86_400.0


class FileRetention(Loop):
    name = "file_retention"

    def __init__(
        self,
        database: Database,
        files: FileStore,
        *,
        # The retention of jobs: an export can be downloaded as long as its job exists.
        exports_s: float,
        # None: as long as their calls.
        enrichments_s: float | None,
    ):
        super().__init__(interval_s=600.0)
        self._database = database
        self._files = files
        self._exports_s = exports_s
        self._enrichments_s = enrichments_s

    async def run_once(self) -> int:
        exports = await asyncio.to_thread(self._files.remove_older, "export-", self._exports_s)
        drafts = await asyncio.to_thread(self._files.remove_older, ".", DRAFT_S)
        items = await self.in_pages(CHUNK, self._remove_enrichments)
        if exports or drafts or items:
            log.info("files.retired", exports=exports, drafts=drafts, enrichments=items)
        return exports + drafts + items

    async def _remove_enrichments(self) -> int:
        if self._enrichments_s is None:
            return 0
        async with self._database.connection() as conn:
            old = await enrichments.expired(conn, self._enrichments_s, CHUNK)
            for ref in old.values():
                await asyncio.to_thread(self._files.remove, ref or "")
            return await enrichments.forget(conn, list(old), self._enrichments_s)

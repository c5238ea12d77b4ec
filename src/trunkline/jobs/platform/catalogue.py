"""Every job type of the platform, and its handler."""

from dataclasses import dataclass
from pathlib import Path

from trunkline.clock import Clock
from trunkline.http.outgoing import Outgoing
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.platform.enrichment import (
    ENRICH_CALL,
    Authorize,
    CallEnrichment,
    Enricher,
    FetchingEnricher,
)
from trunkline.jobs.platform.exports import EXPORT, LeadExport
from trunkline.jobs.platform.files import FileStore
from trunkline.jobs.platform.lead_reports import REPORT_LEAD, LeadReport
from trunkline.jobs.platform.webhooks import DELIVER_WEBHOOK, WebhookDelivery
from trunkline.jobs.registry import Registry, declared
from trunkline.sealing import Sealer
from trunkline.store.database import Database


@dataclass(frozen=True, slots=True)
class PlatformParts:
    """The dependencies of the platform's handlers. The caller closes `outgoing`."""

    database: Database
    sealer: Sealer
    outgoing: Outgoing
    clock: Clock
    files: FileStore
    outbox: Outbox
    enricher: Enricher | None = None
    # Gives the credentials for a recording.
    authorize: Authorize | None = None


def known_types() -> Registry:
    """For a process that enqueues jobs and runs none: the platform's types and those declared by `@job`."""
    return Registry([DELIVER_WEBHOOK, ENRICH_CALL, EXPORT, REPORT_LEAD, *declared])


def platform_registry(parts: PlatformParts) -> Registry:
    """For a worker: the same, with their handlers."""
    registry = Registry(declared)
    delivery = WebhookDelivery(parts.database, parts.sealer, parts.outgoing, parts.clock)
    enricher = parts.enricher or FetchingEnricher(parts.outgoing, parts.files, parts.authorize)
    registry.add(DELIVER_WEBHOOK, delivery.run)
    registry.add(ENRICH_CALL, CallEnrichment(parts.database, enricher).run)
    registry.add(REPORT_LEAD, LeadReport(parts.database, parts.outbox, parts.sealer).run)
    registry.add(EXPORT, LeadExport(parts.database, parts.files).run)
    return registry


def job_files(data_dir: Path) -> FileStore:
    return FileStore(data_dir / "files")

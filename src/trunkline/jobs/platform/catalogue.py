"""Every job type of the platform, and its handler; and what an application adds to them.

JOB_MODULES=acme.jobs                 imported by every process: the API needs a type to enqueue it
CALL_ENRICHER=acme.calls:enricher     called without arguments, returns an `Enricher`; `fetch` is the built-in one
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from trunkline.clock import Clock
from trunkline.errors import TrunklineError
from trunkline.handlers import refusal
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
from trunkline.jobs.wakeups import JobNotifier
from trunkline.sealing import Sealer
from trunkline.store.database import Database

FETCH = "fetch"


class ApplicationError(TrunklineError):
    """JOB_MODULES or CALL_ENRICHER cannot be used."""


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


@dataclass(frozen=True, slots=True)
class JobsApi:
    """What the API needs of jobs."""

    outbox: Outbox
    notifier: JobNotifier
    registry: Registry
    sealer: Sealer
    files: FileStore
    # For development: webhooks to plain HTTP and to private addresses.
    allow_insecure_webhooks: bool = False

    @classmethod
    def build(
        cls,
        notifier: JobNotifier,
        secrets: list[str],
        data_dir: Path,
        *,
        allow_insecure_webhooks: bool = False,
    ) -> "JobsApi":
        registry = known_types()
        return cls(
            outbox=Outbox(registry, notifier),
            notifier=notifier,
            registry=registry,
            sealer=Sealer.from_secrets(secrets),
            files=job_files(data_dir),
            allow_insecure_webhooks=allow_insecure_webhooks,
        )


def load_modules(names: Iterable[str]) -> None:
    """Import the modules that declare job types by `@job` and schedules by `recurring`."""
    for name in names:
        try:
            import_module(name)
        except Exception as error:
            raise ApplicationError(f"JOB_MODULES names {name}, which cannot be imported: {error}") from error


def load_enricher(path: str | None) -> Enricher | None:
    """None: the built-in one, which fetches recordings and transcripts."""
    if path in (None, FETCH):
        return None
    module_name, _, name = path.partition(":")
    try:
        enricher: Enricher = getattr(import_module(module_name), name)()
        reason = refusal(enricher.enrich)
    except Exception as error:
        raise ApplicationError(
            f"CALL_ENRICHER={path} cannot be used: {error}. It is written package.module:factory."
        ) from error
    if reason is not None:
        raise ApplicationError(f"CALL_ENRICHER={path} cannot be used: {reason}")
    return enricher

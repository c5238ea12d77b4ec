"""What an application adds to the platform: job types, recurring jobs, an enricher of calls.

JOB_MODULES=acme.jobs                 imported by every process: the API needs a type to enqueue it
CALL_ENRICHER=acme.calls:enricher     called without arguments, returns an `Enricher`; `fetch` is the built-in one
"""

from collections.abc import Iterable
from importlib import import_module

from trunkline.errors import TrunklineError
from trunkline.handlers import refusal
from trunkline.jobs.platform.enrichment import Enricher

FETCH = "fetch"


class ApplicationError(TrunklineError):
    """JOB_MODULES or CALL_ENRICHER cannot be used."""


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

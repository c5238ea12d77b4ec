"""Runs a process: embedded engines if none are configured, the schema, the platform, and the stop at a signal."""

import asyncio
import gc
import os
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import uvloop

from trunkline.api.admin_key import read_or_make_admin_key
from trunkline.app import Platform
from trunkline.cli import huge_pages
from trunkline.embedded import Engines
from trunkline.errors import TrunklineError
from trunkline.private_files import write_private
from trunkline.settings import Settings, load_settings
from trunkline.store.migrate import Phase, migrate, what_is_left
from trunkline.telemetry import configure_logging, configure_spans, get_logger

log = get_logger(__name__)

# New objects between two runs of the cycle collector.
COLLECTED_AT = 10_000


def run(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run until the work is done or a signal comes. A second signal ends the process at once."""

    async def with_signals() -> None:
        stop = asyncio.Event()

        def ask_to_stop() -> None:
            if stop.is_set():
                os._exit(130)
            stop.set()

        for name in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(name, ask_to_stop)
        await work(stop)

    uvloop.run(with_signals())


@asynccontextmanager
async def embedded_platform(settings: Settings, **overrides: object) -> AsyncIterator[tuple[Platform, str]]:
    """The platform on embedded engines, or on those of the settings; and its admin key."""
    engines = Engines(settings.data_dir, database_url=settings.database.url, redis_url=settings.redis.url)
    async with engines:
        await migrate(settings.database.session_url or engines.database_url)
        admin_key = (
            settings.admin_key.get_secret_value()
            if settings.admin_key is not None
            else read_or_make_admin_key(settings.data_dir / "admin.key")
        )
        given: dict[str, object] = {
            "DATABASE_URL": engines.database_url,
            "REDIS_URL": engines.redis_url,
            "TRUNKLINE_DATA_DIR": str(settings.data_dir),
            "TRUNKLINE_ADMIN_KEY": admin_key,
            "TRUNKLINE_SECRET_KEY": _secret_key(settings),
        }
        complete = load_settings(None, **(given | overrides))
        async with Platform.open(complete) as platform:
            freeze_gc_after_startup()
            watch = asyncio.create_task(_watch(engines), name="engines")
            try:
                yield platform, admin_key
            finally:
                watch.cancel()


def freeze_gc_after_startup() -> None:
    """The objects of the startup live as long as the process. Otherwise the collector scans them every few seconds
    under load, and blocks the process for 100 ms each time. The objects of a call are freed with the call, nearly all
    without a cycle: a run of the collector per 700 new objects would cost 2 % of the CPU time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AT, 10, 10)
    threading.Thread(target=huge_pages.gather, name="huge pages", daemon=True).start()


async def _watch(engines: Engines) -> None:
    """If an engine ends, log it and stop the process, rather than fail every request."""
    name = await engines.failed()
    log.critical("engine.ended", engine=name)
    os.kill(os.getpid(), signal.SIGTERM)


async def serve_platform(settings: Settings, stop: asyncio.Event) -> None:
    """Some roles, on external engines, with secrets that all processes share."""
    needed = {
        "DATABASE_URL": settings.database.url,
        "REDIS_URL": settings.redis.url,
        "TRUNKLINE_SECRET_KEY": settings.secret_keys,
    }
    if missing := [name for name, given in needed.items() if not given]:
        raise TrunklineError(
            f"`trunkline serve` needs {', '.join(missing)}. `trunkline up` brings its own engines."
        )
    async with Platform.open(settings):
        freeze_gc_after_startup()
        await stop.wait()


def prepare(settings: Settings) -> None:
    """Configure logs and spans, before anything else logs."""
    configure_logging(settings)
    configure_spans(settings.spans.endpoint)
    for warning in settings.warnings:
        log.warning("settings.suspicious", hint=warning)


def _secret_key(settings: Settings) -> str:
    if settings.secret_keys:
        return ",".join(key.get_secret_value() for key in settings.secret_keys)
    path = settings.data_dir / "secret.key"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(48), replaces=False)
    return path.read_text(encoding="utf-8").strip()


async def migrate_database(settings: Settings, phase: Phase | None) -> tuple[list[str], list[str]]:
    """Migrate the configured database, or the embedded one, which is started for it. Returns the names of the
    migrations that were applied, and of those that are left."""
    async with AsyncExitStack() as stack:
        url = settings.database.session_url
        if not url:
            url = (await stack.enter_async_context(Engines(settings.data_dir))).database_url
        return await migrate(url, phase=phase), await what_is_left(url)

"""The doctor: checks everything that the platform depends on, and says what to fix."""

import json
import time
from pathlib import Path

from trunkline.bus import connection as bus_connection
from trunkline.bus.keys import Keys
from trunkline.bus.server_time import server_time_s
from trunkline.cli.doctor_carriers import examine_carriers
from trunkline.cli.doctor_finding import Finding
from trunkline.cli.doctor_packs import examine_packs
from trunkline.cli.doctor_router import examine_router
from trunkline.errors import BusUnavailable, MigrationError
from trunkline.settings import Settings
from trunkline.store import migrate, schedule
from trunkline.store.database import CANNOT_CONNECT, describe
from trunkline.store.driver import SingleConnection, connect_single

# Postgres' clock decides when a lead is due; logs and certificates use this machine's.
CLOCK_DIFFERENCE_MAX_S = 1.0
TIMEOUT_S = 5.0


async def examine(settings: Settings) -> list[Finding]:
    """Every check, also after one has failed."""
    database_url, redis_url = engine_addresses(settings)
    findings = [_settings(settings), _secret_key(settings)]
    findings += await _postgres(database_url) if database_url else [_no_engine("Postgres", "DATABASE_URL")]
    findings += [await _valkey(settings, redis_url) if redis_url else _no_engine("Valkey", "REDIS_URL")]
    findings += [await examine_router(settings, redis_url, database_url)] if redis_url else []
    findings += await examine_packs(settings, database_url) if database_url else []
    findings += await examine_carriers(settings, database_url)
    return findings


def engine_addresses(settings: Settings) -> tuple[str | None, str | None]:
    """The engines that are configured, or the embedded ones if they run."""
    announced: dict[str, str] = {}
    announcement = Path(settings.data_dir) / "engines.json"
    if announcement.exists():
        announced = json.loads(announcement.read_text(encoding="utf-8"))
    return (
        settings.database.session_url or announced.get("database_url"),
        settings.redis.url or announced.get("redis_url"),
    )


def _no_engine(name: str, variable: str) -> Finding:
    return Finding(
        name, "problem", f"{variable} is unset and no embedded engine runs: set it, or run `trunkline up`"
    )


def _settings(settings: Settings) -> Finding:
    if settings.warnings:
        return Finding("settings", "warning", "; ".join(settings.warnings))
    return Finding("settings", "ok", "every variable is valid")


def _secret_key(settings: Settings) -> Finding:
    if settings.secret_keys or not settings.database.url:
        return Finding("secret key", "ok", "set" if settings.secret_keys else "stored in the data folder")
    return Finding(
        "secret key",
        "warning",
        "TRUNKLINE_SECRET_KEY is unset: processes would refuse each other's signed URLs",
    )


async def _postgres(url: str) -> list[Finding]:
    try:
        connection = await connect_single(url, application_name="trunkline doctor", timeout_s=TIMEOUT_S)
    except CANNOT_CONNECT as error:
        return [Finding("Postgres", "problem", f"cannot be reached: {describe(error)}. Check DATABASE_URL")]
    try:
        version = connection.get_server_version()
        findings = [Finding("Postgres", "ok", f"version {version.major}.{version.minor}")]
        if version.major < migrate.POSTGRES_MAJOR_MIN:
            findings = [
                Finding(
                    "Postgres", "problem", f"version {version.major}: {migrate.POSTGRES_MAJOR_MIN} is needed"
                )
            ]
        return [*findings, await _clock(connection), await _migrations(connection)]
    finally:
        await connection.close()


async def _clock(connection: SingleConnection) -> Finding:
    before = time.time()
    theirs = await schedule.clock_s(connection)
    difference_s = theirs - (before + time.time()) / 2
    if abs(difference_s) > CLOCK_DIFFERENCE_MAX_S:
        return Finding(
            "clock", "warning", f"Postgres is {difference_s:+.1f} s off this machine's clock: set both by NTP"
        )
    return Finding("clock", "ok", f"{difference_s * 1000:+.0f} ms between Postgres and this machine")


async def _migrations(connection: SingleConnection) -> Finding:
    try:
        await migrate.require_schema(connection)
    except MigrationError as error:
        return Finding("migrations", "problem", str(error))
    if left := [m.name for m in await migrate.pending(connection)]:
        return Finding(
            "migrations",
            "warning",
            f"{', '.join(left)} waits: run `trunkline migrate --post` when no older process is left",
        )
    return Finding("migrations", "ok", "the schema is up to date")


async def _valkey(settings: Settings, url: str) -> Finding:
    bus = bus_connection.connect(url, Keys(settings.domain), cluster=settings.redis.cluster)
    try:
        await server_time_s(bus)
        policy = await bus.client.config_get("maxmemory-policy")
    except BusUnavailable as error:
        return Finding("Valkey", "problem", f"{error}. Check REDIS_URL")
    except Exception as error:
        return Finding("Valkey", "warning", f"scripts run, but its configuration cannot be read: {error}")
    finally:
        await bus.close()
    if policy.get("maxmemory-policy") != "noeviction":
        return Finding("Valkey", "problem", "Valkey may evict keys: set maxmemory-policy noeviction")
    return Finding("Valkey", "ok", "scripts run, and no keys are evicted")

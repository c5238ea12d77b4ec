"""The doctor's checks of rule packs: whether those in use are outdated, and whether phones ring as long as they
require."""

from collections.abc import Sequence
from datetime import UTC, date, datetime

from trunkline.cli.doctor_finding import Finding
from trunkline.errors import StoreUnavailable
from trunkline.leads.calling_policy import CallingPolicy
from trunkline.leads.rule_packs import Pack, known_packs, named, warnings
from trunkline.settings import Settings
from trunkline.store import database as store_database
from trunkline.store import policy
from trunkline.store.database import Connection
from trunkline.store.driver import SERVER_ERROR
from trunkline.store.policy import PolicyKey


async def examine_packs(settings: Settings, database_url: str) -> list[Finding]:
    """None if no policy names a pack, or policies cannot be read, which another check reports."""
    try:
        database = await store_database.connect(database_url, pool_size=1)
    except StoreUnavailable:
        return []
    try:
        async with database.connection() as conn:
            packs = await _packs(conn)
    except (SERVER_ERROR, StoreUnavailable):
        return []
    finally:
        await database.close()
    return judge(packs, settings.carrier.ring_timeout_s, datetime.now(UTC).date())


async def _packs(conn: Connection) -> list[Pack]:
    rows = await policy.read(conn, [PolicyKey("platform", "")])
    edited = CallingPolicy.model_validate(rows[0].policy).edited_packs if rows else ()
    known = known_packs(edited or ())
    return [named(name, known) for name in await policy.packs_named(conn)]


def judge(packs: Sequence[Pack], ring_timeout_s: float, today: date) -> list[Finding]:
    if not packs:
        return []
    findings = [Finding("packs", "warning", text) for text in warnings(packs, today)]
    for pack in packs:
        least_s = pack.abandoned_calls.ring_min_s if pack.abandoned_calls else None
        if least_s is not None and ring_timeout_s < least_s:
            text = (
                f"{pack.name} requires phones to ring for {least_s} s: RING_TIMEOUT is {ring_timeout_s:g} s"
            )
            findings.append(Finding("packs", "warning", text))
    return findings or [
        Finding("packs", "ok", f"{len(packs)} named, each compared with the law within a year")
    ]

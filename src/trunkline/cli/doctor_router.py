"""The doctor's checks of pods: whether there are any, and whether every merchant's calls can get one."""

from collections.abc import Mapping, Sequence

from trunkline.bus import connection as bus_connection
from trunkline.bus import router_views
from trunkline.bus.keys import Keys, RouterKeys
from trunkline.cli.doctor_finding import Finding
from trunkline.errors import BusUnavailable, StoreUnavailable
from trunkline.settings import Settings
from trunkline.settings.tiers import COMMON, Tiers, assignment_order
from trunkline.store import agents, waiting
from trunkline.store import database as store_database
from trunkline.store.driver import SERVER_ERROR
from trunkline.telephony.carrier_registry import STREAMLESS

START_AGENTS = (
    "start an agent (docs/reference/agent.md), or for external agents set AGENTS=elsewhere, "
    "or `agents` of a merchant or a pool"
)
COMMON_TIER = """TIER_CONFIG='{"standard": {"type": "exclusive", "target": 1}}'"""


async def examine_router(settings: Settings, redis_url: str, database_url: str | None = None) -> Finding:
    if settings.router.agents == "elsewhere":
        return Finding("pods", "ok", "AGENTS=elsewhere: external agents take the calls")
    if database_url and (waiting := await _leads_without_agent(database_url)):
        detail = f"no pod is registered, and {waiting} overdue leads wait for an agent: {START_AGENTS}"
        return Finding("pods", "problem", detail)
    bus = bus_connection.connect(redis_url, Keys(settings.domain), cluster=settings.redis.cluster)
    try:
        counts = await router_views.counts(bus, RouterKeys(settings.router_key_prefix))
    except BusUnavailable as error:
        return Finding("pods", "problem", f"{error}. Check REDIS_URL")
    finally:
        await bus.close()
    return judge({pool.tier: pool.assigned for pool in counts.pools}, settings.router.tiers)


async def _leads_without_agent(database_url: str) -> int:
    """How many overdue leads need an agent, if there is none. Another check reports faults of Postgres."""
    try:
        database = await store_database.connect(database_url, pool_size=1)
    except StoreUnavailable:
        return 0
    try:
        async with database.connection() as conn:
            if await agents.are_known(conn):
                return 0
            return int(sum(flow.leads for flow in await waiting.flows(conn, STREAMLESS) if flow.needs_agents))
    except (SERVER_ERROR, StoreUnavailable):
        return 0
    finally:
        await database.close()


def judge(pods: Mapping[str, int], tiers: Tiers) -> Finding:
    """`pods`: how many there are of each tier. Every merchant's calls reach standard, overflow and basic."""
    total, common = sum(pods.values()), sum(pods.get(tier, 0) for tier in COMMON)
    if common:
        return Finding("pods", "ok", f"{total} registered, {common} of them in tiers of every merchant")
    if total:
        where = ", ".join(tier for tier, count in sorted(pods.items()) if count)
        detail = (
            f"{_pods(total)} registered, in {where}: leads of merchants without that tier are not dialled."
        )
        return Finding("pods", "warning", f"{detail} Start more, or set {COMMON_TIER}")
    first = _first_common(tiers)
    if first == 1:
        return Finding("pods", "warning", f"no pod is registered, so no lead is dialled: {START_AGENTS}")
    detail = (
        f"no pod is registered, so no lead is dialled. By TIER_CONFIG pod {first} is the first in a tier of "
        "every merchant: start so many"
    )
    return Finding("pods", "warning", f"{detail}, or set {COMMON_TIER}")


def _first_common(tiers: Tiers) -> int:
    """Which new pod is the first that every merchant's calls reach, counted from 1."""
    return 1 + sum(tiers[tier].target for tier in _before_common(assignment_order(tiers), tiers))


def _before_common(order: Sequence[str], tiers: Tiers) -> list[str]:
    first = next((place for place, tier in enumerate(order) if tier in COMMON and tiers[tier].target), None)
    return [tier for tier in order[:first] if tier not in COMMON]


def _pods(count: int) -> str:
    return "one" if count == 1 else f"{count}"

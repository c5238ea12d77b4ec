"""The pool manager: keeps Valkey's pools equal to the pods and allocations that Postgres has. Only the leader runs it.

Every write into Valkey carries the manager's term, so a manager that was paused while another took over changes
nothing. When Valkey loses its projection the manager rebuilds it from Postgres at once. Without a manager calls still
get pods: new pods register by heartbeat, and none is removed. Without Postgres there is no leader, or the leader waits
until Postgres is back.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from trunkline.bus import router as bus_router
from trunkline.bus import router_manager
from trunkline.bus.router import RouterBus
from trunkline.bus.router_manager import PAGE, Term, TermLost
from trunkline.clock import Clock
from trunkline.crashpoint import crash_point
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S
from trunkline.loops.leader import Elected, LeaderLoop
from trunkline.router.config import RouterConfig
from trunkline.router.pods import Alarm
from trunkline.router.pool_rules import Changes, Freeze, changes
from trunkline.router.pools import Pools
from trunkline.router.sources import PodSource, Sighting
from trunkline.routing import ClusterPod, GonePod, LostAllocation
from trunkline.settings.tiers import assignment_order
from trunkline.store import pods as store
from trunkline.store import router as merchants_store
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.pods import UnnamedCall
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.carrier import CallView, NoSuchCall
from trunkline.telephony.carrier_registry import CARRIERS, CarrierConfigError
from trunkline.telephony.directory import CarrierDirectory

log = get_logger(__name__)

# When an allocation's pod has not named the call for this long, the manager queries the carrier.
UNNAMED_S = 60.0
# When a pod names a foreign call, or a handler of an ended one runs on, for this long, the manager raises an alarm.
ENDING_S = 60.0
# Reads of the merchants before the manager leaves them to the next reconcile.
READS_MAX = 5
# After an outage of Postgres the routers write their notes: proposals without a row are not freed before.
NOTES_S = 5.0

# Whether a call is over according to its carrier; None if the carrier does not answer.
IsOver = Callable[[str], Awaitable[bool | None]]


class PoolManager(LeaderLoop):
    name = "pool_manager"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(
        self,
        bus: RouterBus,
        config: RouterConfig,
        source: PodSource,
        leadership: Elected,
        clock: Clock,
        database: Database,
        *,
        is_over: IsOver,
        alarm: Alarm,
        interval_s: float = 1.0,
    ):
        super().__init__(leadership, interval_s)
        self._bus = bus
        self._config = config
        self._source = source
        self._clock = clock
        self._database = database
        self._pools = Pools(database, bus, config)
        self._is_over = is_over
        self._alarm = alarm
        self._freeze = Freeze()
        self._held_back: dict[str, GonePod | ClusterPod] = {}
        # (pod, call) pairs of foreign calls and of ended calls whose handlers still run, and since when.
        self._ending: dict[tuple[str, str], float] = {}
        self._changes = Changes()
        self._term: Term | None = None
        # The term whose first complete run is done and logged.
        self._announced: Term | None = None
        # The last `is_leader` in the log; operators look for it there.
        self._logged_leader: bool | None = None
        self._postgres_failed_at_s = float("-inf")
        self._reconcile_at_s = 0.0
        self._recover_at_s = 0.0
        self._look_at_s = 0.0

    @property
    def is_leader(self) -> bool:
        return self._term is not None and self._leadership.term == self._term.number

    @property
    def is_in_order(self) -> bool:
        """It leads, and its first complete run is done."""
        return self.is_leader and self._announced is self._term

    async def run_as_follower(self) -> int:
        return self._follow("another process leads, or none")

    async def run_as_leader(self, term: int) -> int:
        lead = await router_manager.lead(self._bus, term)
        if not lead.is_taken:
            return self._follow("a newer term leads")
        if self._term is None or (self._term.epoch, self._term.number) != (lead.epoch, term):
            self._term = Term(self._bus, lead.epoch, term)
            self._reconcile_at_s = self._recover_at_s = self._look_at_s = 0.0
        try:
            done = await self._manage(self._term, lost_for_s=lead.age_s if lead.must_rebuild else None)
        except TermLost as lost:
            log.warning("router.term_lost", reason=str(lost))
            return self._follow(str(lost))
        except UNAVAILABLE as error:
            # When Postgres is back, reconcile and recover everything that changed meanwhile.
            log.error("router.unmanaged", error=str(error))
            self._postgres_failed_at_s = self._clock.monotonic_s()
            self._reconcile_at_s = self._recover_at_s = 0.0
            return 0
        if self._announced is not self._term:
            log.info("router.took_over", is_leader=True, term=term, epoch=lead.epoch)
            self._announced, self._logged_leader = self._term, True
        return done

    def _follow(self, reason: str) -> int:
        self._term = None
        if self._logged_leader is not False:
            log.info("router.follows", is_leader=False, reason=reason)
            self._logged_leader = False
        return 0

    async def _manage(self, term: Term, *, lost_for_s: float | None) -> int:
        now_s = self._clock.monotonic_s()
        done = 0
        crash_point("router.after_lead")
        if lost_for_s is not None:
            await self.rebuild(term, lost_for_s)
        if now_s - self._postgres_failed_at_s >= NOTES_S:
            done += await self._pools.prove(term)
        if now_s >= self._reconcile_at_s:
            done += await self.reconcile(term)
            self._reconcile_at_s = now_s + self._config.reconcile_interval_s
            # Every minute: an operator finds the leader in the last hundred log lines of each router.
            log.info("router.reconciled", is_leader=True, term=term.number, changed=done)
        elif now_s >= self._look_at_s:
            done += await self._act(term, await self._source.poll())
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + (self._config.expire_interval_s if self._config.by_heartbeat else 0)
        done += await self._change(term)
        if now_s >= self._recover_at_s:
            done += await self.recover(term)
            self._recover_at_s = now_s + self._config.cleanup_interval_s
        return done

    async def rebuild(self, term: Term, lost_for_s: float) -> None:
        """After Valkey lost its projection. Without Postgres heartbeats show which pods are busy, and pods get new
        tiers."""
        await self._publish_tiers(term)
        pods, calls = await self._pools.rebuild(term, lost_for_s)
        log.info("router.rebuilt", epoch=term.epoch, pods=pods, calls=calls)

    async def reconcile(self, term: Term) -> int:
        """Correct tiers, merchants and pods by their sources: the config, Postgres and the pod source."""
        await self._publish_tiers(term)
        await self._adopt_merchants(term)
        census = await router_manager.census(self._bus)
        known = [pod for pods in census.values() for pod in pods]
        done = await self._act(term, await self._source.list_all(known))
        await self._balance(term)
        return done

    async def recover(self, term: Term) -> int:
        """Correct pods and slots by Postgres, query the carrier about calls that no pod names, and raise alarms for
        pods that hang."""
        fixed = await self._pools.put_all(term)
        if fixed:
            metrics.ROUTER_RECOVERED.inc(fixed)
            log.info("router.recovered", pods=fixed)
        async with self._database.connection() as conn:
            unnamed = await store.unnamed(conn, UNNAMED_S)
            ending = await store.ending(conn)
            await store.forget_versions(conn)
        for call in unnamed:
            await self._check_unnamed(term, call)
        await self._end_left(term)
        await self._alarm_hanging(ending)
        return fixed

    async def _act(self, term: Term, seen: Sighting) -> int:
        """Write the present pods first. Those that vanished or turned unready wait while very many do so at once."""
        for pod in seen.present:
            self._held_back.pop(pod.name, None)
        await self._write(term, seen.present)
        lost: dict[str, GonePod | ClusterPod] = {**self._held_back}
        lost |= {gone.name: gone for gone in seen.gone} | {pod.name: pod for pod in seen.unready}
        unexpected = [pod.name for pod in lost.values() if not _was_expected(pod)]
        is_frozen = self._freeze.holds_back(self._clock.monotonic_s(), seen.total, unexpected)
        metrics.ROUTER_FROZEN.set(is_frozen)
        # The source reports silent pods again, but not those that the cluster removed.
        held = {name: lost[name] for name in unexpected if not getattr(lost[name], "heard_ms", "")}
        self._held_back = held if is_frozen else {}
        if is_frozen:
            log.error("router.removals_frozen", vanished=self._freeze.count, pods=seen.total)
            await self._alarm("pods_vanished", "", {"vanished": self._freeze.count, "pods": seen.total})
        done = len(seen.present)
        for name, pod_lost in lost.items():
            if name not in unexpected or not is_frozen:
                done += await self._remove(term, pod_lost)
        return done

    async def _write(self, term: Term, pods: Sequence[ClusterPod]) -> None:
        """Write the cluster's pods into Postgres and from there into the pools; only changes."""
        for page in (pods[i : i + PAGE] for i in range(0, len(pods), PAGE)):
            self._check_term(term)
            async with self._database.transaction() as tx:
                changed, lost = await store.see(tx, page, self._config.targets)
            crash_point("router.after_sync")
            self._orphaned("", lost)
            await self._pools.put(term, changed)

    async def _remove(self, term: Term, pod: GonePod | ClusterPod) -> int:
        if isinstance(pod, ClusterPod):
            await self._write(term, [pod])
            return 1
        self._check_term(term)
        is_silent = pod.heard_ms != ""
        async with self._database.transaction() as tx:
            if is_silent and not self._config.by_heartbeat:
                # The cluster still has it: it loses its calls, and is back with its next heartbeat.
                lost = await store.silence(tx, pod.name, self._config.heartbeat_ttl_s)
            else:
                silent_s = self._config.heartbeat_ttl_s if is_silent else 0.0
                lost = await store.remove(tx, pod.name, uid=pod.uid, silent_s=silent_s)
        crash_point("router.after_remove")
        if lost is None:
            # Postgres never had it, or it sent a heartbeat meanwhile.
            return int(await term.remove(pod.name, heard_ms=pod.heard_ms, newest=0))
        self._orphaned(pod.name, lost)
        if is_silent and not self._config.by_heartbeat:
            await bus_router.free(self._bus, [row.id for row in lost], tombstone_s=0)
            return len(lost)
        await term.remove(pod.name, heard_ms=pod.heard_ms)
        log.warning("router.pod_gone", pod=pod.name, calls=len(lost))
        return 1

    def _orphaned(self, pod: str, lost: Sequence[LostAllocation]) -> None:
        """An orphaned call loses its pod and keeps its row: the carrier reports the end of the call, and its next
        request for an agent gets another pod."""
        for row in lost:
            metrics.ROUTER_ORPHANS.inc()
            log.warning("router.call_orphaned", call_id=row.call or "", allocation_id=str(row.id), pod=pod)

    async def _balance(self, term: Term) -> None:
        """Mark the pods that must change their tier or maximum. They take no call until the change: an intent in flight
        is not visible here."""
        self._check_term(term)
        async with self._database.connection() as conn:
            pods = await store.pods(conn)
            busy = frozenset(row.pod for row in await store.live_rows(conn))
            self._changes = changes(pods, busy, self._config.tiers)
            if self._changes.raised:
                await store.raise_maxima(conn, self._changes.raised)
            marked = await store.mark_changing(conn, [*self._changes.changing])
        crash_point("router.after_balance")
        await self._pools.put(term, marked)

    async def _change(self, term: Term) -> int:
        wanted = self._changes.changing
        if not wanted:
            return 0
        self._check_term(term)
        async with self._database.connection() as conn:
            changed = await store.change(conn, [*wanted.values()], [*wanted])
        for pod, tier in changed.items():
            log.info("router.pod_moved", pod=pod, tier=tier)
        await self._pools.put(term, [*changed])
        left = {pod: target for pod, target in wanted.items() if pod not in changed}
        self._changes = Changes(left)
        return len(changed)

    async def _check_unnamed(self, term: Term, call: UnnamedCall) -> None:
        """A call that never reached its pod. While its carrier reports it as live, it may still do so."""
        over = await self._is_over(call.call)
        if over is False:
            return
        self._check_term(term)
        async with self._database.connection() as conn:
            if not await store.end_unnamed(conn, call, is_over=bool(over)):
                return
        crash_point("router.after_abandon")
        log.warning("router.call_never_came", call_id=call.call, pod=call.pod)
        tombstone_s = self._config.ended_ttl_s if over else 0
        await bus_router.free(self._bus, [call.id], tombstone_s=tombstone_s)

    async def _end_left(self, term: Term) -> None:
        """End calls of other users of the router whose release was lost."""
        self._check_term(term)
        async with self._database.connection() as conn:
            left = await store.end_left(conn, UNNAMED_S)
        if left:
            log.warning("router.calls_left", calls=len(left))
            await bus_router.free(self._bus, left, tombstone_s=self._config.ended_ttl_s)

    async def _alarm_hanging(self, ending: Sequence[tuple[str, str]]) -> None:
        """Pods name foreign calls, or have handlers of ended ones, shortly after each call; where an agent hangs, for
        ever."""
        now_s = self._clock.monotonic_s()
        self._ending = {pair: self._ending.get(pair, now_s) for pair in ending}
        metrics.ROUTER_ENDING.set(len({pod for pod, _ in ending}))
        hanging: dict[str, list[str]] = {}
        for (pod, call), since_s in self._ending.items():
            if now_s - since_s >= ENDING_S:
                hanging.setdefault(pod, []).append(call)
        for pod, calls in hanging.items():
            log.error("router.pod_hangs", pod=pod, calls=calls)
            await self._alarm("pod_hangs", pod, {"calls": calls})

    def _check_term(self, term: Term) -> None:
        """Before each write into Postgres: a manager that was paused would undo what its successor wrote."""
        if self._leadership.term != term.number:
            raise TermLost(f"term {term.number} ran out")

    async def _publish_tiers(self, term: Term) -> None:
        tiers = self._config.tiers
        texts = {name: tier.text for name, tier in tiers.items()}
        if await term.publish_tiers(assignment_order(tiers), texts):
            crash_point("router.after_tiers")
            log.info("router.tiers_published", tiers=",".join(tiers))

    async def _adopt_merchants(self, term: Term) -> None:
        truth, changed = await self._make_live(term)
        crash_point("router.after_merchants")
        for merchant, config in changed.items():
            log.info("router.merchant_tier_imported", merchant_id=merchant, removed=not config)
            async with self._database.connection() as conn:
                await merchants_store.adopt_merchant(conn, merchant, config, truth.get(merchant, ""))
        if changed:
            await self._make_live(term)

    async def _make_live(self, term: Term) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Write the merchants of Postgres into Valkey. Returns them, and what an operator changed in Valkey by hand.
        Reads again if edits came in meanwhile; after `READS_MAX` reads the next reconcile continues."""
        for _ in range(READS_MAX):
            edits = await term.merchant_edits()
            async with self._database.connection() as conn:
                truth = await merchants_store.merchants(conn)
            changed = await term.merchants(truth, edits)
            if changed is not None:
                return truth, changed
        return {}, {}


def _was_expected(pod: GonePod | ClusterPod) -> bool:
    return isinstance(pod, GonePod) and pod.was_expected


async def is_over(database: Database, carriers: CarrierDirectory, call_sid: str) -> bool | None:
    """Query the carrier whether a call has ended. None: Postgres has no such call, or its carrier does not answer."""
    try:
        async with database.connection() as conn:
            account = await merchants_store.account_of_call(conn, list(CARRIERS), call_sid)
    except UNAVAILABLE:
        return None
    if account is None:
        return None
    try:
        carrier = carriers.get(*account)
    except CarrierConfigError:
        return None
    match await carrier.look_up(call_sid):
        case CallView(state=state):
            return state == "ended"
        case NoSuchCall():
            return True
        case _:
            return None

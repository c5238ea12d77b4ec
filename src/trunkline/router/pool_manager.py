"""The pool manager: keeps Valkey's pools equal to the pods and allocations that Postgres has. Only the leader runs it.

Everything that it writes into Valkey carries its term, so a manager that was paused while another took over changes
nothing. When memory is lost it is rebuilt from Postgres at once. Without a manager calls still get pods: new ones come
by heartbeat, and nobody is removed. Without Postgres nobody leads, or nothing is managed until it is back.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from trunkline.bus import router as bus_router
from trunkline.bus import router_manager
from trunkline.bus.keys import RouterKeys
from trunkline.bus.router import Runner
from trunkline.bus.router_manager import PAGE, ClusterPod, Term, TermLost
from trunkline.clock import Clock
from trunkline.crashpoint import crash_point
from trunkline.loops.base import PROMPT_BACKOFF_MAX_S
from trunkline.loops.leader import Elected, LeaderLoop
from trunkline.router.balance import Changes, changes
from trunkline.router.config import RouterConfig
from trunkline.router.freeze import Freeze
from trunkline.router.pools import Pools
from trunkline.router.sources import GonePod, PodSource, Sighting
from trunkline.settings.tiers import assignment_order
from trunkline.store import pods as store
from trunkline.store import router as merchants_store
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.store.pods import LostAllocation, Sighted, TierTarget, UnnamedCall
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# An allocation that its pod does not name for this long is asked about.
UNNAMED_S = 60.0
# A pod that names a call which is not its own, or whose handler does not end, for this long is told of.
ENDING_S = 60.0
# So often merchants are read before they are left to the next reconcile.
READS_MAX = 5
# After Postgres was away its notes come in: what has no row yet is not taken back before.
NOTES_S = 5.0

# Says whether a call is over, as far as its carrier knows; None if it cannot be asked.
IsOver = Callable[[str], Awaitable[bool | None]]


class Alarms(Protocol):
    """What the manager tells people of."""

    async def vanished(self, vanished: int, total: int) -> None: ...

    async def hangs(self, pod: str, calls: Sequence[str]) -> None: ...


class PoolManager(LeaderLoop):
    name = "pool_manager"
    backoff_max_s = PROMPT_BACKOFF_MAX_S

    def __init__(
        self,
        bus: Runner,
        keys: RouterKeys,
        config: RouterConfig,
        source: PodSource,
        leadership: Elected,
        clock: Clock,
        database: Database,
        *,
        is_over: IsOver,
        alarms: Alarms,
        interval_s: float = 1.0,
    ):
        super().__init__(leadership, interval_s)
        self._bus = bus
        self._keys = keys
        self._config = config
        self._source = source
        self._clock = clock
        self._database = database
        self._pools = Pools(database, bus, keys, config)
        self._is_over = is_over
        self._alarms = alarms
        self._freeze = Freeze()
        self._held_back: dict[str, GonePod | ClusterPod] = {}
        # Pods that name calls which are not theirs, or of which handlers do not end, and since when.
        self._ending: dict[tuple[str, str], float] = {}
        self._changes = Changes()
        self._term: Term | None = None
        # The term in which it has been through everything once, and has said so.
        self._told: Term | None = None
        # What the log last said of it; operators look for `is_leader` there.
        self._said_leader: bool | None = None
        self._away_at_s = float("-inf")
        self._reconcile_at_s = 0.0
        self._recover_at_s = 0.0
        self._look_at_s = 0.0

    @property
    def is_leader(self) -> bool:
        return self._term is not None and self._leadership.term == self._term.number

    @property
    def is_in_order(self) -> bool:
        """It leads, and has been through everything once."""
        return self.is_leader and self._told is self._term

    async def run_as_follower(self) -> int:
        return self._follow("another leads, or nobody")

    async def run_as_leader(self, term: int) -> int:
        lead = await router_manager.lead(self._bus, self._keys, term)
        if not lead.is_taken:
            return self._follow("a newer term leads")
        if self._term is None or (self._term.epoch, self._term.number) != (lead.epoch, term):
            self._term = Term(self._bus, self._keys, lead.epoch, term)
            self._reconcile_at_s = self._recover_at_s = self._look_at_s = 0.0
        try:
            done = await self._manage(self._term, lost_for_s=lead.age_s if lead.must_rebuild else None)
        except TermLost as lost:
            log.warning("router.term_lost", reason=str(lost))
            return self._follow(str(lost))
        except UNAVAILABLE as error:
            # What was seen meanwhile is looked at again: everything, when Postgres is back.
            log.error("router.unmanaged", error=str(error))
            self._away_at_s = self._clock.monotonic_s()
            self._reconcile_at_s = self._recover_at_s = 0.0
            return 0
        if self._told is not self._term:
            log.info("router.took_over", is_leader=True, term=term, epoch=lead.epoch)
            self._told, self._said_leader = self._term, True
        return done

    def _follow(self, reason: str) -> int:
        self._term = None
        if self._said_leader is not False:
            log.info("router.follows", is_leader=False, reason=reason)
            self._said_leader = False
        return 0

    async def _manage(self, term: Term, *, lost_for_s: float | None) -> int:
        now_s = self._clock.monotonic_s()
        done = 0
        crash_point("router.after_lead")
        if lost_for_s is not None:
            await self.rebuild(term, lost_for_s)
        if now_s - self._away_at_s >= NOTES_S:
            done += await self._pools.prove(term)
        if now_s >= self._reconcile_at_s:
            done += await self.reconcile(term)
            self._reconcile_at_s = now_s + self._config.reconcile_interval_s
            # Every minute: who looks into the last hundred lines of each router finds the leader.
            log.info("router.reconciled", is_leader=True, term=term.number, changed=done)
        elif now_s >= self._look_at_s:
            done += await self._act(term, await self._source.look())
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + (self._config.expire_interval_s if self._config.by_heartbeat else 0)
        done += await self._change(term)
        if now_s >= self._recover_at_s:
            done += await self.recover(term)
            self._recover_at_s = now_s + self._config.cleanup_interval_s
        return done

    async def rebuild(self, term: Term, lost_for_s: float) -> None:
        """After a loss. Without Postgres pods' heartbeats tell who is busy, and their tiers they get anew."""
        await self._publish_tiers(term)
        pods, calls = await self._pools.rebuild(term, lost_for_s)
        log.info("router.rebuilt", epoch=term.epoch, pods=pods, calls=calls)

    async def reconcile(self, term: Term) -> int:
        """Tiers, merchants and the pods of the source, compared with their truth."""
        await self._publish_tiers(term)
        await self._adopt_merchants(term)
        census = await router_manager.census(self._bus, self._keys)
        known = [pod for pods in census.values() for pod in pods]
        done = await self._act(term, await self._source.look_at_all(known))
        await self._balance(term)
        return done

    async def recover(self, term: Term) -> int:
        """Pods and slots that are not where Postgres has them are put there; calls that nobody names are asked about,
        and pods that do not let go are told of."""
        fixed = await self._pools.put_all(term)
        if fixed:
            metrics.ROUTER_RECOVERED.inc(fixed)
            log.info("router.recovered", pods=fixed)
        async with self._database.connection() as conn:
            unnamed = await store.unnamed(conn, UNNAMED_S)
            ending = await store.ending(conn)
            await store.forget_versions(conn)
        for call in unnamed:
            await self._ask_about(term, call)
        await self._end_left(term)
        await self._tell_of(ending)
        return fixed

    async def _act(self, term: Term, seen: Sighting) -> int:
        """Those that are there first. Those that vanish or turn unready wait while very many of them do so at once."""
        for pod in seen.present:
            self._held_back.pop(pod.name, None)
        await self._see(term, seen.present)
        lost: dict[str, GonePod | ClusterPod] = {**self._held_back}
        lost |= {gone.name: gone for gone in seen.gone} | {pod.name: pod for pod in seen.unready}
        unexpected = [pod.name for pod in lost.values() if not _was_expected(pod)]
        verdict = self._freeze.judge(self._clock.monotonic_s(), seen.total, unexpected)
        metrics.ROUTER_FROZEN.set(verdict.is_frozen)
        # Those that fell silent are named again by their source, those that the cluster misses are not.
        held = {name: lost[name] for name in unexpected if not getattr(lost[name], "heard_ms", "")}
        self._held_back = held if verdict.is_frozen else {}
        if verdict.is_frozen:
            log.error("router.removals_frozen", vanished=verdict.vanished, pods=seen.total)
            await self._alarms.vanished(verdict.vanished, seen.total)
        done = len(seen.present)
        for name, either in lost.items():
            if name not in unexpected or not verdict.is_frozen:
                done += await self._lose(term, either)
        return done

    async def _see(self, term: Term, pods: Sequence[ClusterPod]) -> None:
        """What the cluster says of pods, into Postgres and from there into the pools; only what is new."""
        tiers = self._config.tiers
        targets = [
            TierTarget(name, tiers[name].target, tiers[name].max_concurrent)
            for name in assignment_order(tiers)
        ]
        for page in (pods[i : i + PAGE] for i in range(0, len(pods), PAGE)):
            seen = [Sighted(p.name, p.uid, p.is_ready, p.is_deleting, p.ip, p.port, p.version) for p in page]
            self._insist(term)
            async with self._database.transaction() as tx:
                changed, lost = await store.see(tx, seen, targets)
            crash_point("router.after_sync")
            self._orphaned("", lost)
            await self._pools.put(term, changed)

    async def _lose(self, term: Term, pod: GonePod | ClusterPod) -> int:
        if isinstance(pod, ClusterPod):
            await self._see(term, [pod])
            return 1
        self._insist(term)
        is_silent = pod.heard_ms != ""
        async with self._database.transaction() as tx:
            if is_silent and not self._config.by_heartbeat:
                # The cluster still has it: it loses its calls, and is there again when it speaks.
                lost = await store.silence(tx, pod.name, self._config.heartbeat_ttl_s)
            else:
                silent_s = self._config.heartbeat_ttl_s if is_silent else 0.0
                lost = await store.remove(tx, pod.name, uid=pod.uid, silent_s=silent_s)
        crash_point("router.after_remove")
        if lost is None:
            # Postgres never knew it, or it spoke.
            return int(await term.remove(pod.name, heard_ms=pod.heard_ms, newest=0))
        self._orphaned(pod.name, lost)
        if is_silent and not self._config.by_heartbeat:
            await bus_router.free(self._bus, self._keys, [str(one.id) for one in lost], tombstone_s=0)
            return len(lost)
        await term.remove(pod.name, heard_ms=pod.heard_ms)
        log.warning("router.pod_gone", pod=pod.name, calls=len(lost))
        return 1

    def _orphaned(self, pod: str, lost: Sequence[LostAllocation]) -> None:
        """An orphaned call loses its pod and keeps its row: the carrier says when a call is over, and asked again it
        gets another pod."""
        for one in lost:
            metrics.ROUTER_ORPHANS.inc()
            log.warning("router.call_orphaned", call_id=one.call or "", allocation_id=str(one.id), pod=pod)

    async def _balance(self, term: Term) -> None:
        """Which pods change their tier or maximum. They take nothing until then: an intent in flight is not seen."""
        self._insist(term)
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
        self._insist(term)
        async with self._database.connection() as conn:
            changed = await store.change(conn, [*wanted.values()], [*wanted])
        for pod, tier in changed.items():
            log.info("router.pod_moved", pod=pod, tier=tier)
        await self._pools.put(term, [*changed])
        left = {pod: target for pod, target in wanted.items() if pod not in changed}
        self._changes = Changes(left)
        return len(changed)

    async def _ask_about(self, term: Term, call: UnnamedCall) -> None:
        """A call that was given a pod and never came there. While its carrier says that it lives, it may still come."""
        over = await self._is_over(call.call)
        if over is False:
            return
        self._insist(term)
        async with self._database.connection() as conn:
            if not await store.end_unnamed(conn, call, is_over=bool(over)):
                return
        crash_point("router.after_abandon")
        log.warning("router.call_never_came", call_id=call.call, pod=call.pod)
        tombstone_s = self._config.ended_ttl_s if over else 0
        await bus_router.free(self._bus, self._keys, [str(call.id)], tombstone_s=tombstone_s)

    async def _end_left(self, term: Term) -> None:
        """Calls of other users of the router, whose release was lost."""
        self._insist(term)
        async with self._database.connection() as conn:
            left = await store.end_left(conn, UNNAMED_S)
        if left:
            log.warning("router.calls_left", calls=len(left))
            ids = [str(one) for one in left]
            await bus_router.free(self._bus, self._keys, ids, tombstone_s=self._config.ended_ttl_s)

    async def _tell_of(self, ending: Sequence[tuple[str, str]]) -> None:
        """Pods that name calls which are not theirs, for a moment after each call, or of which handlers do not end: for
        ever where an agent hangs."""
        now_s = self._clock.monotonic_s()
        self._ending = {pair: self._ending.get(pair, now_s) for pair in ending}
        metrics.ROUTER_ENDING.set(len({pod for pod, _ in ending}))
        hanging: dict[str, list[str]] = {}
        for (pod, call), since_s in self._ending.items():
            if now_s - since_s >= ENDING_S:
                hanging.setdefault(pod, []).append(call)
        for pod, calls in hanging.items():
            log.error("router.pod_hangs", pod=pod, calls=calls)
            await self._alarms.hangs(pod, calls)

    def _insist(self, term: Term) -> None:
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
            log.info("router.merchant_adopted", merchant_id=merchant, removed=not config)
            async with self._database.connection() as conn:
                await merchants_store.adopt_merchant(conn, merchant, config, truth.get(merchant, ""))
        if changed:
            await self._make_live(term)

    async def _make_live(self, term: Term) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """What Postgres has of merchants, and what was changed by hand. Edited meanwhile, it is read anew; the next
        reconcile goes on where somebody edits all the time."""
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

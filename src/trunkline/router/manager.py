"""The pool manager: keeps Valkey's pools equal to the pods there are. Only the leader runs it.

Everything it writes carries its term, so a manager that was paused while another took over changes nothing. When memory
is lost it brings back tiers and busy pods from the journal; who is free the pods say themselves. Without a manager
calls still get pods: new ones come by heartbeat, and nobody is removed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from trunkline.bus import router_manager
from trunkline.bus.router import Runner
from trunkline.bus.router_keys import RouterKeys
from trunkline.bus.router_manager import PAGE, ClusterPod, Orphan, Term, TermLost, Unnamed
from trunkline.clock import Clock
from trunkline.crashpoint import crash_point
from trunkline.loops.base import Loop
from trunkline.router.config import RouterConfig
from trunkline.router.freeze import Freeze
from trunkline.router.journal import Journal, Over
from trunkline.router.ledger import Differences
from trunkline.router.memory import Memory, Notes
from trunkline.router.sources import GonePod, PodSource, Sighting
from trunkline.settings.tiers import assignment_order
from trunkline.store.database import UNAVAILABLE
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

# An allocation that its pod does not name for this long is asked about.
UNNAMED_S = 60.0
# So often merchants are read before they are left to the next reconcile.
READS_MAX = 5

# Says whether a call is over, as far as its carrier knows; None if it cannot be asked.
IsOver = Callable[[str], Awaitable[bool | None]]
Alarm = Callable[[int, int], Awaitable[None]]


class Leads(Protocol):
    """Whoever knows whether this process leads."""

    @property
    def term(self) -> int | None: ...


class PoolManager(Loop):
    name = "pool_manager"

    def __init__(
        self,
        bus: Runner,
        keys: RouterKeys,
        config: RouterConfig,
        source: PodSource,
        leadership: Leads,
        clock: Clock,
        journal: Journal,
        memory: Memory,
        *,
        is_over: IsOver,
        alarm: Alarm,
        interval_s: float = 1.0,
    ):
        super().__init__(interval_s)
        self._bus = bus
        self._keys = keys
        self._config = config
        self._source = source
        self._leadership = leadership
        self._clock = clock
        self._journal = journal
        self._memory = memory
        self._ledger = memory.ledger(bus, keys)
        self._is_over = is_over
        self._alarm = alarm
        self._freeze = Freeze()
        self._held_back: dict[str, GonePod | ClusterPod] = {}
        self._silent: set[str] = set()
        # After a loss, from when on a pod that never speaks is believed idle; and whether one was not believed yet.
        self._believe_at_s = float("inf")
        self._is_doubtful = False
        self._term: Term | None = None
        # The term in which it has been through everything once, and has said so.
        self._told: Term | None = None
        # What the log last said of it; operators look for `is_leader` there.
        self._said_leader: bool | None = None
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

    async def run_once(self) -> int:
        number = self._leadership.term
        if number is None:
            return self._follow("another leads, or nobody")
        lead = await router_manager.lead(self._bus, self._keys, number)
        if not lead.is_taken:
            return self._follow("a newer term leads")
        if self._term is None or (self._term.epoch, self._term.number) != (lead.epoch, number):
            self._term = Term(self._bus, self._keys, lead.epoch, number)
            self._reconcile_at_s = self._recover_at_s = self._look_at_s = 0.0
            self._believe_at_s = self._clock.monotonic_s() + max(0.0, self._config.settle_s - lead.age_s)
        try:
            done = await self._manage(self._term, must_rebuild=lead.must_rebuild)
        except TermLost as lost:
            log.warning("router.term_lost", reason=str(lost))
            return self._follow(str(lost))
        if self._told is not self._term:
            log.info("router.took_over", is_leader=True, term=number, epoch=lead.epoch)
            self._told, self._said_leader = self._term, True
        return done

    def _follow(self, reason: str) -> int:
        self._term = None
        if self._said_leader is not False:
            log.info("router.follows", is_leader=False, reason=reason)
            self._said_leader = False
        return 0

    async def _manage(self, term: Term, *, must_rebuild: bool) -> int:
        now_s = self._clock.monotonic_s()
        done = 0
        crash_point("router.after_lead")
        if must_rebuild:
            await self.rebuild(term)
        if now_s >= min(self._reconcile_at_s, self._believe_at_s if self._is_doubtful else now_s + 1):
            self._is_doubtful = now_s < self._believe_at_s
            done += await self.reconcile(term)
            self._reconcile_at_s = now_s + self._config.reconcile_interval_s
            # Every minute: who looks into the last hundred lines of each router finds the leader.
            log.info("router.reconciled", is_leader=True, term=term.number, changed=done)
        elif now_s >= self._look_at_s:
            done += await self._act(term, await self._source.look())
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + (self._config.expire_interval_s if self._config.by_heartbeat else 0)
        if now_s >= self._recover_at_s:
            done += await self.recover(term)
            self._recover_at_s = now_s + self._config.cleanup_interval_s
        return done

    async def rebuild(self, term: Term) -> None:
        """After a loss: tiers first, so that every pod finds its own; then pods, busy ones busy, and tombstones."""
        await self._publish_tiers(term)
        try:
            kept = await self._memory.read(self._config.lease_ttl_s, self._config.ended_ttl_s)
        except UNAVAILABLE as error:
            # Pods' heartbeats tell who is busy; their tiers they get anew. When Postgres is back it is done.
            log.error("router.rebuild_without_journal", error=str(error))
            self._believe_at_s = float("inf")
            return
        now_s = self._clock.monotonic_s()
        self._believe_at_s = min(self._believe_at_s, now_s if kept.is_new else now_s + self._config.settle_s)
        if kept.is_new:
            await term.settled()
        await term.bury(kept.ended)
        for pod, tier in kept.tiers.items():
            await term.restore(
                pod,
                tier,
                kept.calls.get(pod, ()),
                lease_ttl_s=self._config.lease_ttl_s,
                by_heartbeat=self._config.by_heartbeat,
            )
            crash_point("router.after_restore")
        await term.rebuilt()
        log.info("router.rebuilt", epoch=term.epoch, pods=len(kept.tiers), calls=kept.calls_count)

    async def reconcile(self, term: Term) -> int:
        """Everything compared with its truth: tiers, merchants, pods, and the journal with all of it."""
        await self._publish_tiers(term)
        await self._adopt_merchants(term)
        census = await router_manager.census(self._bus, self._keys, unnamed_s=UNNAMED_S)
        known = [pod for pods in census.pods.values() for pod in pods]
        done = await self._act(term, await self._source.look_at_all(known))
        await self._mend_journal(term)
        if self._ledger.is_doubtful:
            log.warning("router.memory_in_doubt")
            return done
        moved = await term.balance()
        crash_point("router.after_balance")
        for pod, tier in moved:
            log.info("router.pod_moved", pod=pod, tier=tier)
        await self._note(term, Notes(tiers=dict(moved)))
        return done + len(moved)

    async def recover(self, term: Term) -> int:
        """Pods that are not where they belong are put there, and calls that nobody names are asked about."""
        census = await router_manager.census(self._bus, self._keys, unnamed_s=UNNAMED_S)
        fixed, notes = 0, Notes()
        for tier, pods in census.pods.items():
            for page in (pods[i : i + PAGE] for i in range(0, len(pods), PAGE)):
                count, reset = await term.recover(tier, page)
                crash_point("router.after_recover")
                fixed += count
                for call_sid, pod in reset:
                    log.warning("router.call_reset", call_id=call_sid, pod=pod)
                notes.reset += reset
        await self._note(term, notes)
        if fixed:
            metrics.ROUTER_RECOVERED.inc(fixed)
            log.info("router.recovered", pods=fixed)
        for unnamed in census.unnamed:
            await self._ask_about(term, unnamed)
        return fixed

    async def _act(self, term: Term, seen: Sighting) -> int:
        """Those that are there first. Those that vanish or turn unready wait while very many of them do so at once."""
        notes = Notes()
        for pod in seen.present:
            self._held_back.pop(pod.name, None)
            await self._sync(term, pod, notes)
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
            await self._alarm(verdict.vanished, seen.total)
        done = len(seen.present)
        for name, either in lost.items():
            if name not in unexpected or not verdict.is_frozen:
                done += await self._lose(term, either, notes)
        await self._note(term, notes)
        return done

    async def _sync(self, term: Term, pod: ClusterPod, notes: Notes) -> None:
        durable = await self._journal.tier_of(pod.name)
        may_be_idle = self._clock.monotonic_s() >= self._believe_at_s and pod.name not in self._silent
        synced = await term.sync(pod, durable_tier=durable, may_be_idle=may_be_idle)
        crash_point("router.after_sync")
        if synced.tier and synced.tier != durable:
            notes.tiers[pod.name] = synced.tier
        self._orphaned(pod.name, synced.orphans)

    async def _lose(self, term: Term, pod: GonePod | ClusterPod, notes: Notes) -> int:
        if isinstance(pod, ClusterPod):
            await self._sync(term, pod, notes)
            return 1
        orphans = await term.remove(pod.name, uid=pod.uid, heard_ms=pod.heard_ms)
        crash_point("router.after_remove")
        if orphans is None:
            return 0
        log.warning("router.pod_gone", pod=pod.name, calls=len(orphans))
        self._orphaned(pod.name, orphans)
        notes.gone.append(pod.name)
        # Where the cluster says which pods there are: one that spoke before is not believed idle without speaking.
        (self._silent.add if pod.heard_ms else self._silent.discard)(pod.name)
        return 1

    def _orphaned(self, pod: str, orphans: Sequence[Orphan]) -> None:
        """Orphaning ends the allocation, never the attempt: the carrier says when a call is over."""
        for orphan in orphans:
            metrics.ROUTER_ORPHANS.inc()
            log.warning("router.call_orphaned", call_id=orphan.call_sid, pod=pod)
            self._journal.over(Over(orphan.allocation_id, orphan.call_sid, pod, is_orphaned=True))

    async def _ask_about(self, term: Term, unnamed: Unnamed) -> None:
        """A call that was given a pod and never came there. While its carrier says that it lives, it may still come."""
        over = await self._is_over(unnamed.call_sid)
        if over is False:
            return
        tombstone_s = self._config.ended_ttl_s if over else 0
        if await term.abandon(unnamed, tombstone_s=tombstone_s):
            crash_point("router.after_abandon")
            log.warning("router.call_never_came", call_id=unnamed.call_sid, pod=unnamed.pod)
            self._journal.over(
                Over(unnamed.allocation_id, unnamed.call_sid, unnamed.pod, is_orphaned=not over)
            )

    async def _note(self, term: Term, notes: Notes) -> None:
        """At once, and only while it leads: a manager that was paused since it acted would undo what its successor
        wrote down. What is not written now is mended by the next reconcile."""
        if not notes:
            return
        if not self._still_leads(term):
            raise TermLost(f"term {term.number} ran out")
        try:
            await self._memory.note(notes)
        except UNAVAILABLE as error:
            log.warning("router.note_lost", error=str(error))
        for pod, tier in notes.tiers.items():
            self._journal.learn(pod, tier)
        if await self._is_back(term, notes.gone):
            await self._mend_journal(term)

    async def _is_back(self, term: Term, gone: Sequence[str]) -> bool:
        """Whether one of them came while its row was removed, and what was noted of it with it. Whoever comes after
        this look is noted after the removal."""
        for pod in gone:
            self._journal.learn(pod, "")
        return bool(gone) and len(await term.missing(gone)) < len(gone)

    def _still_leads(self, term: Term) -> bool:
        return self._leadership.term == term.number

    async def _mend_journal(self, term: Term) -> None:
        mend = partial(self._ledger.mend, term, self._config.lease_ttl_s, partial(self._still_leads, term))
        try:
            _tell_of(found := await mend())
            while await self._is_back(term, found.gone):
                _tell_of(found := await mend())
            await self._memory.tidy()
        except UNAVAILABLE as error:
            log.warning("router.journal_unmended", error=str(error))

    async def _publish_tiers(self, term: Term) -> None:
        tiers = self._config.tiers
        texts = {name: tier.text for name, tier in tiers.items()}
        if await term.publish_tiers(assignment_order(tiers), texts):
            crash_point("router.after_tiers")
            log.info("router.tiers_published", tiers=",".join(tiers))

    async def _adopt_merchants(self, term: Term) -> None:
        try:
            truth, changed = await self._make_live(term)
        except UNAVAILABLE as error:
            log.warning("router.merchants_unread", error=str(error))
            return
        crash_point("router.after_merchants")
        for merchant, config in changed.items():
            log.info("router.merchant_adopted", merchant_id=merchant, removed=not config)
            await self._memory.adopt_merchant(merchant, config, before=truth.get(merchant, ""))
        if changed:
            await self._make_live(term)

    async def _make_live(self, term: Term) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """What Postgres has of merchants, and what was changed by hand. Edited meanwhile, it is read anew; the next
        reconcile goes on where somebody edits all the time."""
        for _ in range(READS_MAX):
            edits = await term.merchant_edits()
            truth = await self._memory.merchants()
            changed = await term.merchants(truth, edits)
            if changed is not None:
                return truth, changed
        return {}, {}


def _tell_of(found: Differences) -> None:
    if len(found):
        over, gone = len(found.over) + len(found.orphaned), len(found.gone)
        log.info("router.journal_mended", over=over, unnoted=len(found.unnoted), gone=gone, tiers=found.tiers)


def _was_expected(pod: GonePod | ClusterPod) -> bool:
    return isinstance(pod, GonePod) and pod.was_expected

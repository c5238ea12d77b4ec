"""The router's configuration. Its settings have the names of its guide: `LEASE_TTL`, `VOICE_AGENT_BASE_URL`, …"""

from dataclasses import dataclass, field

from trunkline.bus.router import WaitRule
from trunkline.settings import Settings
from trunkline.settings.tiers import DEFAULT, Tiers, assignment_order
from trunkline.store.pods import TierTarget

# How long a call on hold waits before it, or its carrier, polls again.
HOLD_S = 1
# A call that has not polled for this long has hung up.
SILENCE_S = HOLD_S + 2.0


@dataclass(frozen=True, slots=True)
class RouterConfig:
    tiers: Tiers = field(default_factory=lambda: DEFAULT)
    lease_ttl_s: int = 24 * 3600
    draining_ttl_s: int = 360
    # How long a duplicate answer webhook may lag behind the end of its call.
    ended_ttl_s: int = 600
    heartbeat_ttl_s: float = 90
    expire_interval_s: float = 5
    cleanup_interval_s: float = 30
    reconcile_interval_s: float = 60
    # Only where Postgres cannot be read: after Valkey lost its projection an idle pod becomes free by a heartbeat begun
    # 10 s later; a request may take 5 s.
    settle_s: float = 15
    # A Postgres that started more recently may have lost its latest allocations: then a pod that looks free has to send
    # a heartbeat first.
    postgres_young_s: float = 60
    # How long a call may wait for a pod, polling every `HOLD_S`; 0: it is refused at once when all are busy.
    hold_max_s: float = 10
    # Pods register by heartbeat; otherwise the cluster lists them.
    by_heartbeat: bool = True

    @classmethod
    def of(cls, settings: Settings) -> "RouterConfig":
        router = settings.router
        return cls(
            tiers=router.tiers,
            lease_ttl_s=round(router.lease_ttl_s),
            draining_ttl_s=round(router.draining_ttl_s),
            heartbeat_ttl_s=router.heartbeat_ttl_s,
            cleanup_interval_s=router.cleanup_interval_s,
            reconcile_interval_s=router.reconcile_interval_s,
            hold_max_s=router.hold_max_s,
            by_heartbeat=router.pod_source == "heartbeat",
        )

    def callers_of(self, tier: str) -> int:
        """The tier's inbound reserve: slots that dials leave free; -1: 10 % of its slots."""
        known = self.tiers.get(tier)
        return -1 if known is None or known.callers is None else known.callers

    @property
    def targets(self) -> list[TierTarget]:
        """In the order in which new pods are assigned."""
        tiers = self.tiers
        return [TierTarget(n, tiers[n].target, tiers[n].max_concurrent) for n in assignment_order(tiers)]

    @property
    def receiving_gap_max_s(self) -> float:
        """Three missed runs of the expiry: the router was away, so missing heartbeats prove nothing."""
        return 3 * self.expire_interval_s

    @property
    def wait_rule(self) -> WaitRule:
        return WaitRule(round(self.hold_max_s * 1000), round(SILENCE_S * 1000))

    @property
    def tiers_text(self) -> str:
        """The format in which a heartbeat publishes the tiers if Valkey has none yet."""
        order = ",".join(assignment_order(self.tiers))
        return " ".join([f"#order={order}", *(f"{name}={tier.text}" for name, tier in self.tiers.items())])

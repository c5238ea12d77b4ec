"""What the router is told. The names of the settings are those of its guide: `LEASE_TTL`, `VOICE_AGENT_BASE_URL`, …"""

from dataclasses import dataclass

# The tier of every pod, and the one that every call is given a pod of.
STANDARD = "standard"


@dataclass(frozen=True, slots=True)
class RouterConfig:
    # Where streams go if a pod does not say it for itself: `{base}/ws/pod/{pod}/{call_sid}`.
    voice_agent_base_url: str = "wss://localhost:8081"
    tiers: tuple[str, ...] = (STANDARD,)
    lease_ttl_s: int = 24 * 3600
    # How long a duplicate answer webhook may lag behind the end of its call.
    ended_ttl_s: int = 600
    heartbeat_ttl_s: float = 90
    expire_interval_s: float = 5

    @property
    def hearing_gap_max_s(self) -> float:
        """Three missed runs of the expiry: we were away, and the pods' silence proves nothing."""
        return 3 * self.expire_interval_s

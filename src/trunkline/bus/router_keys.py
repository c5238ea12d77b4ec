"""Every key of the router, with the names and types of its operations sheet.

The prefix is `voice`; on a cluster it is `{voice}`, so that one script may touch all of the router's keys.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouterKeys:
    prefix: str = "voice"

    def _key(self, *parts: str) -> str:
        return ":".join((self.prefix, *parts))

    @property
    def base(self) -> str:
        """What scripts put before the keys they compose themselves."""
        return self._key("")

    def available(self, tier: str) -> str:
        """SET of the pods of an exclusive tier that may take a call."""
        return self._key("pool", tier, "available")

    def assigned(self, tier: str) -> str:
        """SET of all pods of a tier: free, busy and leaving."""
        return self._key("pool", tier, "assigned")

    def order(self, tier: str) -> str:
        """ZSET pod -> ms since when it is free. A hint: the SET decides."""
        return self._key("pool", tier, "order")

    def pod(self, name: str) -> str:
        """HASH `status`, `allocated_call_sid`, …, and what the pod's last heartbeat said."""
        return self._key("pod", name)

    def pod_tier(self, name: str) -> str:
        """STRING, the pod's tier."""
        return self._key("pod", "tier", name)

    def draining(self, name: str) -> str:
        """STRING with a TTL: an operator keeps new calls away."""
        return self._key("pod", "draining", name)

    @property
    def metadata(self) -> str:
        """HASH pod -> JSON `{"tier", "name"}`."""
        return self._key("pod", "metadata")

    def lease(self, name: str) -> str:
        """STRING with a TTL: the call that has this pod."""
        return self._key("lease", name)

    def call(self, call_sid: str) -> str:
        """HASH `pod_name`, `source_pool`, `merchant_id`, `allocated_at`, `allocation_id`."""
        return self._key("call", call_sid)

    def ended(self, call_sid: str) -> str:
        """STRING with a TTL: the call is over and gets no pod again."""
        return self._key("ended", call_sid)

    @property
    def calls(self) -> str:
        """ZSET call -> ms of its allocation, for those that have a pod."""
        return self._key("calls")

    @property
    def heartbeats(self) -> str:
        """ZSET pod -> ms of its last heartbeat."""
        return self._key("heartbeats")

    @property
    def hearing(self) -> str:
        """HASH `since`, `ran`: since when heartbeats could be heard without a gap."""
        return self._key("hearing")

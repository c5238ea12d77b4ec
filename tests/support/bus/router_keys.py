"""Every key of the router, as its operations sheet names and types them: tests read and break what scripts wrote."""

from dataclasses import dataclass

from trunkline.bus import keys


@dataclass(frozen=True, slots=True)
class RouterKeys(keys.RouterKeys):
    def _key(self, *parts: str) -> str:
        return ":".join((self.prefix, *parts))

    @property
    def tiers(self) -> str:
        """HASH tier -> `e|target|1` or `s|target|max`, `#order` of assignment, `#number` of the config."""
        return self._key("tiers")

    def _pool(self, tier: str) -> str:
        return self._key(tier) if tier.startswith("merchant:") else self._key("pool", tier)

    def available(self, tier: str) -> str:
        """SET of the pods of an exclusive tier that may take a call; ZSET pod -> calls of a shared one."""
        return f"{self._pool(tier)}:{'pods' if tier.startswith('merchant:') else 'available'}"

    def assigned(self, tier: str) -> str:
        """SET of all pods of a tier: free, busy and leaving."""
        return f"{self._pool(tier)}:assigned"

    def order(self, tier: str) -> str:
        """ZSET pod -> ms since when it is free. A hint: the SET decides."""
        return f"{self._pool(tier)}:order"

    def waiting_for(self, tier: str) -> str:
        """ZSET call -> ms since when it waits for a pod of this tier."""
        return f"{self._pool(tier)}:waiting"

    def waiting_merchants(self, tier: str) -> str:
        """HASH merchant -> how many of its calls wait for this tier."""
        return f"{self._pool(tier)}:waiting:merchants"

    def yielded(self, tier: str) -> str:
        """SET of the calls that waited and got a slot of this tier: dials have yielded to these."""
        return f"{self._pool(tier)}:yielded"

    def kept_in(self, tier: str) -> str:
        """ZSET allocation id -> ms since when a slot of this tier is reserved for its dial."""
        return f"{self._pool(tier)}:kept"

    def silent(self, tier: str) -> str:
        """SET of the silent pods: reserved for no dial, tried for calls when no other pod is free."""
        return f"{self._pool(tier)}:silent"

    def leaving(self, tier: str) -> str:
        """SET of the pods that are leaving: they fill no target."""
        return f"{self._pool(tier)}:leaving"

    @property
    def dials_waiting(self) -> str:
        """STRING with a TTL of 3 s: a dial found no slot, so the next freed slot wakes the dialers."""
        return self._key("dials", "waiting")

    @property
    def waiting(self) -> str:
        """ZSET call -> ms of its last request."""
        return self._key("waiting")

    @property
    def waiters(self) -> str:
        """HASH call -> the tiers that it waits for."""
        return self._key("waiters")

    def pod(self, name: str) -> str:
        """HASH `status`, `allocated_call_sid`, …, and the fields of the pod's last heartbeat."""
        return self._key("pod", name)

    def pod_tier(self, name: str) -> str:
        """STRING, the pod's tier."""
        return self._key("pod", "tier", name)

    def pod_calls(self, name: str) -> str:
        """SET of the calls that have this pod."""
        return self._key("pod", "calls", name)

    def draining(self, name: str) -> str:
        """STRING with a TTL: an operator keeps new calls away."""
        return self._key("pod", "draining", name)

    def pod_slots(self, name: str) -> str:
        """HASH slot -> allocation id, reserved or begun."""
        return self._key("pod", "slots", name)

    @property
    def kept(self) -> str:
        """ZSET allocation id -> ms since when a slot is reserved for its dial."""
        return self._key("kept")

    def kept_for(self, allocation_id: str) -> str:
        """HASH `pod`, `slot`, `incarnation`, `source_pool`, `merchant_id` of a slot reserved for a dial."""
        return self._key("kept", allocation_id)

    def begun(self, allocation_id: str) -> str:
        """STRING with a TTL: the call of an allocation that has begun."""
        return self._key("begun", allocation_id)

    @property
    def unproven(self) -> str:
        """ZSET allocation id -> ms: not yet compared with its row in Postgres."""
        return self._key("unproven")

    @property
    def resets(self) -> str:
        """HASH allocation id -> call and pod that an operator reset by hand, until Postgres has it."""
        return self._key("resets")

    @property
    def metadata(self) -> str:
        """HASH pod -> JSON `{"tier", "name"}`."""
        return self._key("pod", "metadata")

    def lease(self, name: str) -> str:
        """STRING with a TTL: a call that has this pod."""
        return self._key("lease", name)

    def call(self, call_sid: str) -> str:
        """HASH `pod_name`, `source_pool`, `merchant_id`, `allocated_at`, `allocation_id`."""
        return self._key("call", call_sid)

    def ended(self, call_sid: str) -> str:
        """STRING with a TTL: the call has ended and gets no pod again."""
        return self._key("ended", call_sid)

    @property
    def calls(self) -> str:
        """ZSET call -> ms of its allocation, for those that have a pod."""
        return self._key("calls")

    def superseded(self, name: str) -> str:
        """STRING with a TTL of 2 min: the number of heartbeats from replaced processes of this pod."""
        return self._key("superseded", name)

    @property
    def merchant_config(self) -> str:
        """HASH merchant -> JSON `{"tier", "pool"}`. A change by hand is taken over into Postgres."""
        return self._key("merchant", "config")

    @property
    def merchant_written(self) -> str:
        """HASH merchant -> JSON: what was written last, to distinguish a change by hand from a loss."""
        return self._key("merchant", "written")

    @property
    def version(self) -> str:
        """STRING, the version of the agents that appeared last: new calls prefer it."""
        return self._key("version")

    @property
    def heartbeats(self) -> str:
        """ZSET pod -> ms of its last heartbeat."""
        return self._key("heartbeats")

    @property
    def hearing(self) -> str:
        """HASH `since`, `ran`: since when routers receive heartbeats without a gap."""
        return self._key("hearing")

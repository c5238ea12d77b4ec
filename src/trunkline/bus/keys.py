"""Every key in Valkey that Python names, built here and nowhere else. Scripts build theirs in `lua/includes/keys.lua`.

All keys of a dispatch domain share one hash tag, so that one script may touch them all, on a cluster too.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one dispatch domain, `tl:{main}:…`."""

    domain: str = "main"
    prefix: str = "tl"

    def _key(self, *parts: str) -> str:
        return ":".join((f"{self.prefix}:{{{self.domain}}}", *parts))

    @property
    def probe(self) -> str:
        return self._key("probe")

    @property
    def epoch(self) -> str:
        """HASH `run_id`, `number`, `building`: the server's run that it is valid in, and its number."""
        return self._key("epoch")

    def projection(self, epoch: int) -> "Projection":
        """The keys of dispatch. Every epoch has keys of its own, so that a rebuild touches nothing that is live."""
        return Projection(self._key(f"e{epoch}", ""))

    @property
    def all_projections(self) -> str:
        """A pattern for the keys of all epochs."""
        return self._key("e[0-9]*")

    @property
    def witness(self) -> str:
        """STRING `installation beat`: Postgres's last beat that the leader saw."""
        return self._key("witness")

    @property
    def outage(self) -> str:
        """STRING: the id under which processes report an outage of Postgres."""
        return self._key("outage")

    @property
    def outage_announced_by(self) -> str:
        """STRING: the process that reports it."""
        return self._key("outage", "told_by")

    @property
    def outage_announced(self) -> str:
        """STRING: the outage that was delivered to the webhook."""
        return self._key("outage", "told")

    @property
    def dialer_wakeups(self) -> str:
        """LIST that dialers wait on."""
        return self._key("dialer_wakeups")

    def mailbox_wakeups(self, kind: str) -> str:
        """STREAM of mailbox keys that have new events."""
        return self._key("mailbox", kind, "wakeups")


class Projection(str):
    """The prefix of the keys of one epoch's projection of dispatch, and the keys that Python reads too.
    `lua/includes/keys.lua` lists them all."""

    __slots__ = ()

    @property
    def leads(self) -> str:
        """HASH lead -> its record."""
        return f"{self}leads"

    @property
    def partial(self) -> str:
        """SET of the flows that have more leads in Postgres than in Valkey."""
        return f"{self}partial"

    @property
    def moves(self) -> str:
        """ZSET lead -> ms when it may go to its next pool."""
        return f"{self}moves"

    @property
    def holders(self) -> str:
        """HASH attempt -> the channel that it holds, and for which lead."""
        return f"{self}holders"

    @property
    def live(self) -> str:
        """HASH merchant or campaign -> how many calls it has."""
        return f"{self}live"

    @property
    def stops(self) -> str:
        """HASH stopped subject -> the reason."""
        return f"{self}stops"

    def queue(self, flow: str, place: str) -> str:
        """ZSET of the leads of a flow that are scheduled (`s`) or wait for their turn (`w`)."""
        return f"{self}flow:{flow}:{place}"


@dataclass(frozen=True, slots=True)
class RouterKeys:
    """The keys of the router, as its operations sheet names and types them. `docs/explanation/router.md` lists them.

    The prefix is `voice`; on a cluster it is `{voice}`, so that one script may touch all of the router's keys.
    """

    prefix: str = "voice"

    def _key(self, *parts: str) -> str:
        return ":".join((self.prefix, *parts))

    @property
    def base(self) -> str:
        """The prefix of the keys that scripts compose themselves."""
        return self._key("")

    @property
    def epoch(self) -> str:
        """HASH `run_id`, `id`, `began_ms`, `term`: the server's run that the projection is valid in, its manager."""
        return self._key("epoch")

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

"""The values of the call router: pods, their slots, and the calls that have them.

Postgres, Valkey and the router exchange them, so that a question has one type of answer from the script to the document
for the carrier: a call gets an `Allocation`, or an `Unallocated` says why it has none.
"""

import math
from collections.abc import Sequence
from typing import Literal
from uuid import UUID

from trunkline.model import Slot
from trunkline.value import Value


class Allocation(Value, frozen=True):
    """A call and its slot. A call of '': its dial is not answered yet. `base_url` is the pod's own address for streams,
    '' if it reported none. `turn`: how many agents the call had before. `is_existing`: it had this slot before."""

    id: UUID
    call: str
    slot: Slot
    merchant_id: str = ""
    turn: int = 0
    base_url: str = ""
    is_existing: bool = True
    # In s since 1970; 0: now.
    at_s: int = 0
    # The merchant's config names no existing tier, so standard was tried.
    is_misconfigured: bool = False

    @property
    def pod(self) -> str:
        return self.slot.pod


# busy: no pod is free. hold: none is free yet, and the call waits. unknown: neither engine answered. elsewhere: the
# call's agents are external. given_up: its attempt was written off, and has to be reattached before the call gets a
# pod. The others hang up: the call has ended (a duplicate of its answer webhook came late), a newer attempt has
# superseded it, or its attempt has taken another call.
WhyUnallocated = Literal["busy", "hold", "unknown", "elsewhere", "given_up", "ended", "superseded", "taken"]


class Unallocated(Value, frozen=True):
    """Why a call has no pod now. `before`: how many calls wait before it. For an overdialled call: the message that
    replaces the fallback's, and its longest wait."""

    why: WhyUnallocated
    before: int = 0
    message: str = ""
    wait_max_s: float = math.inf
    is_misconfigured: bool = False


class EndedAllocation(Value, frozen=True):
    """An allocation that ended. `id` is None if only a heartbeat had named the call, `pod` if it had lost its pod."""

    id: UUID | None
    pod: str | None
    source_pool: str = ""
    was_draining: bool = False
    pod_status: str = ""


class LostAllocation(Value, frozen=True):
    """An allocation that lost its pod. `call` is None while its dial was not answered."""

    id: UUID
    call: str | None


class PodHeartbeat(Value, frozen=True):
    """A pod's report on itself. `sequence` grows with every heartbeat of one `boot_id`."""

    pod: str
    boot_id: str
    sequence: int
    ip: str = ""
    port: int = 0
    version: str = ""
    base_url: str = ""
    calls: tuple[str, ...] = ()
    leaving: bool = False
    interval_s: float = 30.0
    # Calls that it had recently.
    ended: tuple[str, ...] = ()
    # Ended calls whose handlers hang: it takes that many calls fewer.
    hanging: tuple[str, ...] = ()
    # Those of `calls` that it is about to hand over to other pods.
    handing_over: tuple[str, ...] = ()


class RegisteredPod(Value, frozen=True):
    """A pod's process in Postgres. An incarnation of 0: Postgres is unavailable. `is_new`: the pod was unknown. `lost`
    by its predecessor."""

    incarnation: int = 0
    tier: str = ""
    is_new: bool = False
    past_boots: Sequence[str] = ()
    newest_version: str = ""
    calls_max: int = 1
    lost: Sequence[LostAllocation] = ()


class HeartbeatResult(Value, frozen=True):
    """`is_news` is False for a heartbeat that a later one overtook. `calls` have the pod, connected or not.
    `again_in_s`: when its next heartbeat should come, 0 for as usual. A tier of '' is that of a pod that may not
    register itself, an incarnation of 0 that of one that Postgres does not have yet."""

    is_news: bool
    tier: str
    draining: bool
    calls: tuple[str, ...]
    again_in_s: float
    max_concurrent: int
    incarnation: int


class PodSuperseded(Value, frozen=True):
    """A later process has this pod's name: this one is late, or of another cluster with the same names. `times`: how
    often this was returned within two minutes."""

    times: int = 1


class Pod(Value, frozen=True):
    """A pod in Postgres. A sequence of 0: it has sent no heartbeat, only the cluster has it."""

    name: str
    incarnation: int
    tier: str
    calls_max: int = 1
    base_url: str = ""
    ip: str = ""
    port: int = 0
    version: str = ""
    boot_id: str = ""
    past_boots: Sequence[str] = ()
    uid: str = ""
    sequence: int = 0
    named: Sequence[str] = ()
    hanging: Sequence[str] = ()
    reset_calls: Sequence[str] = ()
    interval_s: float = 30.0
    is_ready: bool = True
    is_leaving: bool = False
    is_changing: bool = False
    unheard_s: float = 0.0
    drain_left_s: float = 0.0


class ClusterPod(Value, frozen=True):
    """A pod as Kubernetes reports it."""

    name: str
    uid: str
    is_ready: bool
    is_deleting: bool
    ip: str = ""
    port: int = 0
    version: str = ""


class GonePod(Value, frozen=True):
    """A pod that vanished. `was_expected`: it had announced that it would leave. `uid` or `heard_ms`, the time of its
    last heartbeat, identify it: a successor of the same name, or one with a later heartbeat, is another."""

    name: str
    uid: str = ""
    heard_ms: str = ""
    was_expected: bool = False

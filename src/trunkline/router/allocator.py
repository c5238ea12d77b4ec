"""Gives calls their pods and takes them back."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import uuid_utils

from trunkline.bus import router as bus_router
from trunkline.bus.router import Allocation, CallOver, Hold, NoPod, Runner, Stale
from trunkline.bus.router_keys import RouterKeys
from trunkline.crashpoint import crash_point
from trunkline.router.config import RouterConfig
from trunkline.router.journal import Begun, Journal, NoJournal, Over
from trunkline.router.streams import StreamKeys, stream_url
from trunkline.telemetry import get_logger, metrics

log = get_logger(__name__)

_ALLOCATED = metrics.ROUTER_ALLOCATIONS.labels("allocated")
_EXISTING = metrics.ROUTER_ALLOCATIONS.labels("existing")
_NONE = metrics.ROUTER_ALLOCATIONS.labels("none")


@dataclass(frozen=True, slots=True)
class Allocated:
    """The call's pod. The carrier connects to `ws_url` and hands over `token` as a parameter of the stream."""

    pod: str
    ws_url: str
    token: str = field(repr=False)
    source_pool: str
    allocated_at: datetime
    was_existing: bool


@dataclass(frozen=True, slots=True)
class NoneFree:
    """No pod is free."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """No pod is free yet: ask again in `retry_s`. So many calls wait before this one."""

    before: int
    retry_s: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The call is over: hang up. A duplicate of its answer webhook came late."""


@dataclass(frozen=True, slots=True)
class Released:
    pod: str
    source_pool: str
    was_draining: bool


@dataclass(frozen=True, slots=True)
class NotAllocated:
    """This call has no pod: it was released already, or never had one."""


class Allocator:
    def __init__(
        self,
        bus: Runner,
        keys: RouterKeys,
        stream_keys: StreamKeys,
        config: RouterConfig,
        journal: Journal | None = None,
    ):
        self._bus = bus
        self._keys = keys
        self._stream_keys = stream_keys
        self._config = config
        self._journal = journal or NoJournal()
        self._no_wait = bus_router.WaitRule()

    async def allocate(
        self, call_sid: str, merchant_id: str = "", *, may_wait: bool = False
    ) -> Allocated | NoneFree | Waiting | Ended:
        """Idempotent: every request for one call gets the same pod and the same token."""
        result = await bus_router.allocate(
            self._bus,
            self._keys,
            call_sid,
            merchant_id=merchant_id,
            allocation_id=uuid_utils.uuid4().hex,
            lease_ttl_s=self._config.lease_ttl_s,
            wait=self._config.wait_rule if may_wait else self._no_wait,
            is_alone=True,
        )
        crash_point("router.after_allocate")
        match result:
            case Allocation():
                return self._allocated(call_sid, merchant_id, result)
            case Hold():
                metrics.ROUTER_ALLOCATIONS.labels("hold").inc()
                return Waiting(result.before, self._config.hold_poll_s)
            case CallOver():
                metrics.ROUTER_ALLOCATIONS.labels("ended").inc()
                return Ended()
            case NoPod() | Stale():
                _NONE.inc()
                self._report(merchant_id, isinstance(result, NoPod) and result.is_misconfigured)
                return NoneFree()

    async def release(self, call_sid: str, by_pod: str = "") -> Released | NotAllocated:
        """Idempotent. `by_pod` names the pod if it is the pod itself that lets go of the call."""
        result = await bus_router.release(
            self._bus, self._keys, call_sid, by_pod=by_pod, ended_ttl_s=self._config.ended_ttl_s
        )
        crash_point("router.after_release")
        if result is None:
            return NotAllocated()
        self._journal.over(Over(result.allocation_id, call_sid, result.pod))
        if result.pod_status == "gone":
            log.warning("router.released_gone_pod", pod=result.pod, call_id=call_sid)
        return Released(result.pod, result.source_pool, result.was_draining)

    def _allocated(self, call_sid: str, merchant_id: str, allocation: Allocation) -> Allocated:
        (_EXISTING if allocation.was_existing else _ALLOCATED).inc()
        self._report(merchant_id, allocation.is_misconfigured)
        if not allocation.was_existing:
            self._journal.begun(
                Begun(
                    allocation.allocation_id,
                    call_sid,
                    allocation.pod,
                    allocation.source_pool,
                    merchant_id,
                    allocation.allocated_at_s,
                )
            )
        base_url = allocation.base_url or self._config.voice_agent_base_url
        return Allocated(
            pod=allocation.pod,
            ws_url=stream_url(base_url, allocation.pod, call_sid),
            token=self._stream_keys.sign(allocation.pod, call_sid, allocation.allocation_id),
            source_pool=allocation.source_pool,
            allocated_at=datetime.fromtimestamp(allocation.allocated_at_s, UTC),
            was_existing=allocation.was_existing,
        )

    def _report(self, merchant_id: str, is_misconfigured: bool) -> None:
        if is_misconfigured:
            metrics.ROUTER_UNKNOWN_TIERS.inc()
            log.warning("router.unknown_tier", merchant_id=merchant_id)

"""The router's client for synchronous code. Its requests run on a loop in a thread of their own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from trunkline.client.breaker import CircuitBreaker
from trunkline.client.rollout import ReadFlags, RolloutDecision, RolloutFlags
from trunkline.client.router_settings import RouterSettings
from trunkline.client.smart_router import PodAllocation, Route, SmartRouterClient
from trunkline.client.unisolated import UNISOLATED, UnisolatedCalls

T = TypeVar("T")


class SyncSmartRouterClient:
    """The same methods, synchronous. Thread-safe."""

    def __init__(
        self,
        settings: RouterSettings | None = None,
        *,
        flags: ReadFlags = RolloutFlags.from_env,
        breaker: CircuitBreaker | None = None,
        unisolated: UnisolatedCalls = UNISOLATED,
    ):
        self._client = SmartRouterClient(settings, flags=flags, breaker=breaker, unisolated=unisolated)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="smart router", daemon=True)
        self._thread.start()

    def __enter__(self) -> "SyncSmartRouterClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def breaker(self) -> CircuitBreaker:
        return self._client.breaker

    @property
    def unisolated(self) -> UnisolatedCalls:
        return self._client.unisolated

    def decide(self, merchant_id: str) -> RolloutDecision:
        return self._client.decide(merchant_id)

    def route(self, call_sid: str, merchant_id: str = "", provider: str = "") -> Route:
        return self._run(self._client.route(call_sid, merchant_id, provider))

    def allocate_pod(self, call_sid: str, merchant_id: str = "", provider: str = "") -> PodAllocation | None:
        return self._run(self._client.allocate_pod(call_sid, merchant_id, provider))

    def release_pod(self, call_sid: str, reason: str = "") -> bool:
        return self._run(self._client.release_pod(call_sid, reason))

    def drain_pod(self, pod_name: str) -> bool:
        return self._run(self._client.drain_pod(pod_name))

    def undrain_pod(self, pod_name: str) -> bool:
        return self._run(self._client.undrain_pod(pod_name))

    def get_pool_status(self) -> dict[str, Any] | None:
        return self._run(self._client.get_pool_status())

    def health_check(self) -> bool:
        return self._run(self._client.health_check())

    def close(self) -> None:
        """Running requests of other threads end with CancelledError: without the loop they would never complete."""
        if not self._thread.is_alive():
            return
        self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _shut(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

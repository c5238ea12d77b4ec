"""The router's client for synchronous code. Its requests run on a loop in a thread of their own."""

from typing import Any

from trunkline.client.background_loop import BackgroundLoop
from trunkline.client.breaker import CircuitBreaker
from trunkline.client.rollout import ReadFlags, RolloutDecision, RolloutFlags
from trunkline.client.router_settings import RouterSettings
from trunkline.client.smart_router import PodAllocation, Route, SmartRouterClient
from trunkline.client.unisolated import UNISOLATED, UnisolatedCalls


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
        self._loop = BackgroundLoop("smart router client")
        self._run = self._loop.run

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
        self._loop.close(self._client.close)

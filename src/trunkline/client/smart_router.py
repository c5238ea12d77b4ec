"""The router's client: a pod for a call, or what to do without one.

async with SmartRouterClient() as router:
    match await router.route(call_sid, merchant_id, "twilio"):
        case PodAllocation() as pod: ...      # connect the stream to pod.ws_url, with pod.token
        case Fallback(url=url): ...           # connect the stream to any agent
        case Busy(): ...                      # no agent is free

Failures are values: nothing here raises because the router is slow, full or away. A call that gets no pod is never
dropped silently: it goes to the fallback URL, and is logged and counted with the reason. So a client needs that URL,
unless its settings choose the busy message instead.
"""

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout

from trunkline.client.breaker import CircuitBreaker, shared_breaker
from trunkline.client.rollout import ReadFlags, RolloutDecision, RolloutFlags, decide
from trunkline.client.router_settings import RouterSettings, RouterSettingsError
from trunkline.client.unisolated import HINTS, UNISOLATED, UnisolatedCalls
from trunkline.schema.router import PodAllocation

__all__ = ["Busy", "CallEnded", "Fallback", "PodAllocation", "Route", "SmartRouterClient"]

log = logging.getLogger(__name__)

PAUSE_FIRST_S = 0.05
NO_FALLBACK = (
    "SMART_ROUTER_FALLBACK_URL is not set: set it to the wss:// URL of agents that take calls without the router, "
    "or set SMART_ROUTER_ENABLE_FALLBACK=false if callers without a pod shall hear that all agents are busy"
)


@dataclass(frozen=True, slots=True)
class Fallback:
    """No pod of its own: the stream goes to any agent."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class Busy:
    """Play the caller that no agent is free."""

    reason: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call is over: hang up."""


Route = PodAllocation | Fallback | Busy | CallEnded


@dataclass(frozen=True, slots=True)
class _RouterReply:
    status: int
    body: dict[str, Any]

    @property
    def code(self) -> str:
        return str(self.body.get("code", ""))

    @property
    def is_failure(self) -> bool:
        """The router failed. That no pod is free is a valid answer."""
        return self.status >= 500 and not (
            self.status == 503 and self.code in ("", "no_pods_available", "hold")
        )

    @property
    def is_key_refused(self) -> bool:
        return self.status in (401, 403)


class SmartRouterClient:
    """All clients of one router in one process share one circuit breaker. `unisolated` counts calls without a pod."""

    def __init__(
        self,
        settings: RouterSettings | None = None,
        *,
        flags: ReadFlags = RolloutFlags.from_env,
        breaker: CircuitBreaker | None = None,
        unisolated: UnisolatedCalls = UNISOLATED,
    ):
        self.settings = settings or RouterSettings.from_env()
        if self.settings.fallback_enabled and not self.settings.fallback_url:
            raise RouterSettingsError(NO_FALLBACK)
        self.unisolated = unisolated
        self.breaker = breaker or shared_breaker(self.settings.base_url, self.settings.breaker)
        self._flags = flags
        self._session: ClientSession | None = None

    async def __aenter__(self) -> "SmartRouterClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def decide(self, merchant_id: str) -> RolloutDecision:
        """Whether this merchant's calls use the router now."""
        is_open = self.breaker.state == "open"
        try:
            flags = self._flags() if self.settings.is_enabled else RolloutFlags()
        except Exception:
            # An external flag service that fails, or a malformed variable: no reason to drop a call.
            log.exception("the rollout flags cannot be read")
            return RolloutDecision(False, "flags_unreadable")
        return decide(merchant_id, flags, is_enabled=self.settings.is_enabled, is_circuit_open=is_open)

    async def route(self, call_sid: str, merchant_id: str = "", provider: str = "") -> Route:
        """All in one: the rollout gates, the router, and the fallback."""
        decision = self.decide(merchant_id)
        if not decision.use_router:
            return self._without(call_sid, provider, decision.reason)
        allocation = await self._allocate(call_sid, merchant_id)
        if isinstance(allocation, str):
            return self._without(call_sid, provider, allocation)
        return allocation

    async def allocate_pod(
        self, call_sid: str, merchant_id: str = "", provider: str = ""
    ) -> PodAllocation | None:
        """The call's pod; None if there is none, or the router does not answer."""
        allocation = await self._allocate(call_sid, merchant_id)
        if isinstance(allocation, PodAllocation):
            return allocation
        if isinstance(allocation, str):
            self.unisolated.record(call_sid, provider, allocation, "none")
        else:
            log.info("no pod for %s (%s): the call has ended", call_sid, provider)
        return None

    async def release_pod(self, call_sid: str, reason: str = "") -> bool:
        """True if the call has no pod any more: released now, or before."""
        answer = await self._ask("POST", "/api/v1/release", {"call_sid": call_sid})
        if answer is None or answer.status not in (200, 404):
            log.warning("release of %s (%s) did not arrive", call_sid, reason)
            return False
        return True

    async def drain_pod(self, pod_name: str) -> bool:
        answer = await self._ask("POST", "/api/v1/drain", {"pod_name": pod_name})
        return answer is not None and answer.status == 200

    async def undrain_pod(self, pod_name: str) -> bool:
        answer = await self._ask("DELETE", f"/api/v1/drain/{quote(pod_name, safe='')}")
        return answer is not None and answer.status == 200

    async def get_pool_status(self) -> dict[str, Any] | None:
        answer = await self._ask("GET", "/api/v1/status")
        return answer.body if answer is not None and answer.status == 200 else None

    async def health_check(self) -> bool:
        """Bypasses the circuit breaker, and does not change its state."""
        try:
            return (await self._send("GET", "/health", None)).status == 200
        except (ClientError, OSError, ValueError):
            return False

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _allocate(self, call_sid: str, merchant_id: str) -> PodAllocation | CallEnded | str:
        """The pod, or the reason for which there is none."""
        body = {"call_sid": call_sid, "merchant_id": merchant_id}
        answer = await self._ask("POST", "/api/v1/allocate", body, tries=self.settings.retry_attempts)
        if answer is None:
            return "router_unavailable"
        if answer.status == 200:
            return _allocation(answer.body) or "answer_unreadable"
        if answer.status == 410:
            return CallEnded()
        return "no_pods_available" if answer.status == 503 else f"refused_{answer.status}"

    def _without(self, call_sid: str, provider: str, reason: str) -> Fallback | Busy:
        settings = self.settings
        answer: Literal["fallback", "busy"] = "fallback" if settings.fallback_enabled else "busy"
        self.unisolated.record(call_sid, provider, reason, answer)
        if answer == "busy":
            return Busy(reason)
        filled = {"call_sid": quote(call_sid, safe=""), "provider": quote(provider, safe="")}
        url = settings.fallback_url
        for name, value in filled.items():
            url = url.replace(f"{{{name}}}", value)
        return Fallback(url, reason)

    async def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, tries: int = 1
    ) -> _RouterReply | None:
        """None if there was no response, or the circuit is open. Only for idempotent requests."""
        for number in range(tries):
            if not self.breaker.allows():
                return None
            try:
                answer = await self._send(method, path, body)
            except (ClientError, OSError, ValueError) as error:
                self.breaker.failed()
                log.warning("%s %s: %s", method, path, str(error) or type(error).__name__)
            except Exception:
                # An unexpected error must not drop the call either: it counts as a failure and is logged in full.
                self.breaker.failed()
                log.exception("%s %s failed", method, path)
            except BaseException:
                self.breaker.given_up()
                raise
            else:
                if answer.is_key_refused:
                    # Neither a success nor a failure: the router works, and waiting does not fix a key. An open circuit
                    # would only hide the reason; without it a corrected key works at once.
                    self.breaker.given_up()
                    log.error(
                        "%s %s: %s (%d)", method, path, HINTS[f"refused_{answer.status}"], answer.status
                    )
                    return answer
                if not answer.is_failure:
                    self.breaker.succeeded()
                    return answer
                self.breaker.failed()
                log.warning("%s %s answered with %d", method, path, answer.status)
            if number + 1 < tries:
                await asyncio.sleep(random.uniform(0, PAUSE_FIRST_S * 2**number))  # noqa: S311
        return None

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> _RouterReply:
        if self._session is None:
            headers = {"Authorization": f"Bearer {self.settings.api_key}"} if self.settings.api_key else {}
            self._session = ClientSession(
                headers=headers, timeout=ClientTimeout(total=self.settings.timeout_s)
            )
        url = self.settings.base_url.rstrip("/") + path
        # A redirect would carry the key to another host.
        async with self._session.request(method, url, json=body, allow_redirects=False) as response:
            content = await response.json(content_type=None)
            return _RouterReply(response.status, content if isinstance(content, dict) else {})


def _allocation(body: dict[str, Any]) -> PodAllocation | None:
    allocation = body.get("allocation")
    if not isinstance(allocation, dict):
        return None
    try:
        return PodAllocation(
            str(allocation["pod_name"]),
            str(allocation["ws_url"]),
            str(allocation.get("source_pool", "")),
            str(allocation.get("allocated_at", "")),
            bool(allocation.get("was_existing")),
            str(allocation.get("token", "")),
        )
    except KeyError:
        return None

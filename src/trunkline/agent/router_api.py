"""An agent's HTTP requests to the router."""

from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout

from trunkline.schema.router import AgentHeartbeat, HeartbeatReply


class RouterUnavailable(Exception):
    """The router did not accept the request. It may or may not have taken effect."""


class PodSuperseded(RouterUnavailable):
    """A later process has registered under this pod's name: the router gives this one no calls."""


class RouterApi:
    def __init__(self, url: str, api_key: str, timeout_s: float):
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = ClientTimeout(total=timeout_s)
        self._session: ClientSession | None = None

    async def heartbeat(self, pod: str, beat: AgentHeartbeat) -> HeartbeatReply:
        status, answer = await self._post(f"/api/v1/pods/{quote(pod, safe='')}/heartbeat", asdict(beat))
        if status == 409 and isinstance(answer, dict) and answer.get("code") == "pod_superseded":
            raise PodSuperseded(_reason(answer) or "pod superseded")
        if status != 200:
            raise RouterUnavailable(f"heartbeat answered with {status}: {_reason(answer)}")
        try:
            for secret in answer["stream_secrets"]:
                bytes.fromhex(secret)
            return HeartbeatReply(
                True,
                pod,
                answer["tier"],
                answer["draining"],
                answer["call_sid"],
                list(answer.get("calls") or filter(None, [answer["call_sid"]])),
                int(answer.get("max_concurrent", 0)),
                float(answer.get("again_in_s", 0.0)),
                float(answer.get("call_time_limit_s", 0.0)),
                answer["stream_secrets"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RouterUnavailable("heartbeat answered with something unreadable") from error

    async def release(self, call_sid: str, pod: str, turn: int) -> None:
        """Idempotent: a call that the router does not have counts as released. If the call got another agent since, an
        earlier turn ends nothing."""
        body = {"call_sid": call_sid, "pod_name": pod, "turn": turn}
        status, answer = await self._post("/api/v1/release", body)
        if status not in (200, 404):
            raise RouterUnavailable(f"release answered with {status}: {_reason(answer)}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self._session is None:
            self._session = ClientSession(timeout=self._timeout, headers=self._headers)
        try:
            # A redirect would carry the key to another host.
            async with self._session.post(self._url + path, json=body, allow_redirects=False) as response:
                return response.status, await response.json(content_type=None)
        except (ClientError, OSError, ValueError) as error:
            raise RouterUnavailable(f"{self._url}: {str(error) or type(error).__name__}") from error


def _reason(answer: Any) -> str:
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""

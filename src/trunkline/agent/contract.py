"""An agent's requests about its call to the platform: context, state and report, over HTTP with the call's own key."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout

from trunkline.schema.calls import CallOutcome

# The name that handlers know.
Outcome = CallOutcome

# A report that is not stored is lost, so it is retried; a repeat counts once.
TRIES = 5
PAUSE_FIRST_S = 0.2


class PlatformUnavailable(Exception):
    """The platform did not answer, several times."""


class ReportRefused(Exception):
    """The platform refused the request: the message says why. A retry does not help."""


@dataclass(frozen=True, slots=True)
class Context:
    """The platform's data of a call. An inbound call has no lead."""

    call_sid: str
    attempt_id: str
    direction: str
    to: str = field(repr=False)
    from_: str = field(repr=False)
    merchant_id: str
    template: str | None
    lead_id: str | None
    payload: Mapping[str, Any] = field(repr=False)
    # An agent before this one had the call and was lost; `state` is what it stored, None if nothing.
    resumed: bool
    state: Mapping[str, Any] | None = field(repr=False)
    # The whole response, including fields without a name here.
    raw: Mapping[str, Any] = field(repr=False)


class Contract:
    """Requests of one call to the platform. `parameters` are those of its stream."""

    def __init__(self, url: str, call_sid: str, parameters: Mapping[str, str], timeout_s: float = 5.0):
        self._path = f"{url.rstrip('/')}/api/v1/calls/{quote(call_sid, safe='')}"
        turn = parameters.get("resumed", "")
        token = ".".join([parameters.get("attempt", ""), *filter(None, [turn]), parameters.get("key", "")])
        self._headers = {"Authorization": f"Bearer {token}"}
        self._timeout = ClientTimeout(total=timeout_s)

    async def context(self) -> Context:
        return _context(await self._request("GET", self._path))

    async def report(self, outcome: Outcome) -> None:
        """Returns when it is stored. Idempotent."""
        at = outcome.callback_at
        body = {**asdict(outcome), "callback_at": at.isoformat() if at else None}
        await self._request("POST", f"{self._path}/outcome", json=body)

    async def save_state(self, state: Mapping[str, Any]) -> None:
        """Returns when it is stored."""
        await self._request("PUT", f"{self._path}/state", json=dict(state))

    async def _request(self, method: str, url: str, **body: Any) -> Any:
        problem = ""
        async with ClientSession(headers=self._headers, timeout=self._timeout) as session:
            for attempt in range(TRIES):
                if attempt:
                    await asyncio.sleep(PAUSE_FIRST_S * 2 ** (attempt - 1))
                try:
                    # A redirect would carry the key to another host.
                    async with session.request(method, url, allow_redirects=False, **body) as response:
                        answer = await response.json(content_type=None)
                except (ClientError, OSError, ValueError) as error:
                    problem = str(error) or type(error).__name__
                    continue
                if response.status < 300:
                    return answer
                problem = f"{response.status}: {_reason(answer)}"
                if response.status < 500:
                    raise ReportRefused(problem)
        raise PlatformUnavailable(f"{method} {url}: {problem}")


def _context(answer: Any) -> Context:
    lead = answer["lead"] or {}
    return Context(
        call_sid=answer["call_sid"],
        attempt_id=answer["attempt_id"],
        direction=answer["direction"],
        to=answer["to"],
        from_=answer["from"],
        merchant_id=answer["merchant_id"],
        template=answer["template"],
        lead_id=lead.get("id"),
        payload=lead.get("payload") or {},
        resumed=bool(answer.get("resumed", False)),
        state=answer.get("state"),
        raw=answer,
    )


def _reason(answer: Any) -> str:
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""

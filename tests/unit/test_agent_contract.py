"""The agent's requests to the platform: what it sends, what it retries, and when it fails."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from trunkline.agent import Outcome, PlatformUnavailable, ReportRefused, contract
from trunkline.agent.contract import Contract

CONTEXT = {
    "call_sid": "CA1",
    "attempt_id": "a1",
    "direction": "outbound",
    "to": "+14155550123",
    "from": "+14155550100",
    "merchant_id": "m",
    "template": None,
    "lead": {"id": "l1", "payload": {"name": "Ada"}},
}


@dataclass
class Platform:
    """Answers with these statuses, one after the other; the last one from then on."""

    url: str = ""
    statuses: list[int] = field(default_factory=lambda: [200])
    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=lambda: dict(CONTEXT))

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json() if request.method in ("POST", "PUT") else None
        self.asked.append((request.path, request.headers["Authorization"], body))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.json_response(self.context if status == 200 else {"error": "because"}, status=status)


@pytest.fixture
async def platform(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Platform]:
    monkeypatch.setattr(contract, "PAUSE_FIRST_S", 0.0)
    platform, app = Platform(), web.Application()
    app.router.add_route("*", "/{path:.*}", platform.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    platform.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield platform
    await runner.cleanup()


def line(platform: Platform) -> Contract:
    return Contract(platform.url, "CA/1", {"attempt": "a1", "key": "k", "other": "x"})


async def test_context_requests_the_call_with_its_own_token(platform: Platform) -> None:
    about = await line(platform).context()
    assert (about.lead_id, about.payload, about.direction) == ("l1", {"name": "Ada"}, "outbound")
    assert platform.asked == [("/api/v1/calls/CA%2F1", "Bearer a1.k", None)] or platform.asked == [
        ("/api/v1/calls/CA/1", "Bearer a1.k", None)
    ]
    assert "+14155550123" not in repr(about)


async def test_context_of_a_resumed_call_uses_its_turn_and_returns_the_stored_state(
    platform: Platform,
) -> None:
    platform.context = CONTEXT | {"resumed": True, "state": {"step": 2}}
    resumed = Contract(platform.url, "CA1", {"attempt": "a1", "key": "k", "resumed": "1"})
    about = await resumed.context()
    assert (about.resumed, about.state) == (True, {"step": 2})
    assert platform.asked[0][1] == "Bearer a1.1.k"
    assert "step" not in repr(about)


async def test_save_state_sends_the_state_and_raises_when_it_is_too_late(platform: Platform) -> None:
    await line(platform).save_state({"step": 1})
    assert platform.asked[0][0].endswith("/state")
    assert platform.asked[0][2] == {"step": 1}
    platform.statuses = [409]
    with pytest.raises(ReportRefused, match="409"):
        await line(platform).save_state({"step": 2})


async def test_a_report_is_retried_until_the_platform_stores_it(platform: Platform) -> None:
    platform.statuses = [503, 500, 201]
    wanted = datetime(2030, 5, 1, tzinfo=UTC)
    await line(platform).report(Outcome("sold", callback_at=wanted, data={"n": 1}))
    assert len(platform.asked) == 3
    assert platform.asked[0][2] == {
        "disposition": "sold",
        "opt_out": False,
        "callback_at": "2030-05-01T00:00:00+00:00",
        "transcript_ref": None,
        "recording_ref": None,
        "data": {"n": 1},
    }


async def test_a_refused_report_is_not_retried(platform: Platform) -> None:
    platform.statuses = [409]
    with pytest.raises(ReportRefused, match="409: because"):
        await line(platform).report(Outcome("sold"))
    assert len(platform.asked) == 1


async def test_a_report_to_an_unreachable_platform_fails_after_its_tries(platform: Platform) -> None:
    platform.statuses = [503]
    with pytest.raises(PlatformUnavailable, match="because"):
        await line(platform).report(Outcome("sold"))
    assert len(platform.asked) == contract.TRIES

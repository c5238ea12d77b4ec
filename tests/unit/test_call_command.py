"""`trunkline call`, of which the API is played here."""

import asyncio
from typing import Any, cast

import pytest

from trunkline.cli import call
from trunkline.client.transport import Transport

WHY = "It waits for an agent: no agent is registered."


class Api:
    """A lead that waits for so many looks, and is then over."""

    def __init__(self, looks: int):
        self._looks = looks

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return {"id": "lead-1"}

    async def get(self, path: str) -> dict[str, Any]:
        if path.endswith("/why"):
            return {"answer": WHY}
        self._looks -= 1
        status = "BACKLOG" if self._looks > 0 else "FINISHED"
        return {"id": "lead-1", "status": status, "timeline": [], "decisions": []}


@pytest.mark.parametrize(("looks", "times"), [(2, 0), (20, 1)], ids=["at once", "in vain"])
def test_a_call_that_does_not_begin_is_explained_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], looks: int, times: int
) -> None:
    monkeypatch.setattr(call, "POLL_S", 0)
    asyncio.run(call._place(cast(Transport, Api(looks)), {}, wait=True, quiet=False))
    assert capsys.readouterr().out.count(WHY) == times

"""A list and a watch that overtake each other: what is older never replaces what is newer."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from trunkline.router.kubernetes.api import ApiResponse, ClusterAddress, ClusterApi, ClusterUnavailable
from trunkline.router.kubernetes.reflector import LISTS_MAX, Reflector


def pod(name: str, version: int) -> dict[str, Any]:
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "uid": "u", "resourceVersion": str(version)}, "status": status}


class Server(ClusterApi):
    """Lists are answered in turn, when they are let through; events come as they are put."""

    def __init__(self) -> None:
        super().__init__(ClusterAddress("http://nowhere", Path("/nowhere")))
        self.lists: list[ApiResponse] = []
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def listing(self, version: int, *names: str) -> None:
        items = [pod(name, version) for name in names]
        self.lists.append(ApiResponse(200, {"items": items, "metadata": {"resourceVersion": str(version)}}))

    async def request(self, *args: Any, **more: Any) -> ApiResponse:
        answer = self.lists.pop(0)
        self.asked.set()
        await self.may_answer.wait()
        return answer

    async def watch(
        self, path: str, query: Mapping[str, str], *, lasts_s: float
    ) -> AsyncIterator[dict[str, Any]]:
        while True:
            yield await self.events.get()
            self.events.task_done()


@pytest.fixture
async def server() -> Server:
    return Server()


async def watching(server: Server) -> tuple[Reflector, "asyncio.Task[None]"]:
    reflector = Reflector(server, "here", "app=voice-agent")
    task = asyncio.create_task(reflector.run())
    await server.asked.wait()
    return reflector, task


async def stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait([task])


async def test_a_list_older_than_the_watch_brings_no_deleted_pod_back(server: Server) -> None:
    server.listing(100, "agent-0", "agent-1")
    reflector, task = await watching(server)
    await server.events.put({"type": "MODIFIED", "object": pod("agent-0", 101)})
    await server.events.join()

    server.listing(101, "agent-0", "agent-1")
    server.listing(105, "agent-0")
    server.asked.clear()
    server.may_answer.clear()
    again = asyncio.create_task(reflector.list_all())
    await server.asked.wait()
    await server.events.put({"type": "DELETED", "object": pod("agent-1", 105)})
    await server.events.join()
    server.may_answer.set()
    await again

    assert set(reflector.pods) == {"agent-0"}
    await stop(task)


async def test_events_from_before_the_last_list_change_nothing(server: Server) -> None:
    server.listing(100, "agent-0")
    reflector, task = await watching(server)
    server.listing(110, "agent-1")
    await reflector.list_all()
    reflector.take_changes()

    await server.events.put({"type": "MODIFIED", "object": pod("agent-0", 104)})
    await server.events.put({"type": "DELETED", "object": pod("agent-1", 107)})
    await server.events.join()

    assert set(reflector.pods) == {"agent-1"}
    assert reflector.take_changes() == set()
    await server.events.put({"type": "ADDED", "object": pod("agent-2", 111)})
    await server.events.join()
    assert set(reflector.pods) == {"agent-1", "agent-2"}
    await stop(task)


async def test_a_server_that_repeatedly_lists_an_older_version_is_accepted_in_the_end(server: Server) -> None:
    server.listing(100, "agent-0")
    reflector, task = await watching(server)
    await server.events.put({"type": "ADDED", "object": pod("agent-1", 120)})
    await server.events.join()
    for _ in range(LISTS_MAX):
        server.listing(100, "agent-0")
    with pytest.raises(ClusterUnavailable):
        await reflector.list_all()
    assert set(reflector.pods) == {"agent-0", "agent-1"}
    server.listing(100, "agent-0")
    await reflector.list_all()
    assert set(reflector.pods) == {"agent-0"}
    await stop(task)

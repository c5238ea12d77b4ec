"""An agent in a process of its own, for tests that kill it. It counts its steps in the call's state, and tells of every
call on its standard output: `python -m tests.support.agent.process <port>`, with the variables of an agent.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from trunkline.agent import Agent, AgentSettings, Call


async def talk(call: Call, pod: str) -> dict[str, Any]:
    """One step further than the agent before; what this one was told of the call."""
    about = await call.context()
    step = (about.state or {"step": 0})["step"]
    await call.save_state({"step": step + 1, "pod": pod})
    return {
        "pod": pod,
        "call": call.call_sid,
        "turn": call.turn,
        "resumed": about.resumed,
        "state": about.state,
    }


@dataclass(frozen=True, slots=True)
class AgentProcess:
    name: str
    process: asyncio.subprocess.Process

    async def told(self) -> dict[str, Any]:
        """The next line that it wrote."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 30)
        assert line, f"{self.name} has ended"
        told: dict[str, Any] = json.loads(line)
        return told

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def agent_process(name: str, router_url: str, api_key: str, port: int) -> AsyncIterator[AgentProcess]:
    """It has registered when it is given."""
    own = {
        "SMART_ROUTER_BASE_URL": router_url,
        "SMART_ROUTER_API_KEY": api_key,
        "POD_NAME": name,
        "VOICE_AGENT_BASE_URL": f"ws://127.0.0.1:{port}",
        "VOICE_AGENT_SHUTDOWN_TIMEOUT": "2",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.agent.process",
        str(port),
        env=os.environ | own,
        stdout=asyncio.subprocess.PIPE,
    )
    agent = AgentProcess(name, process)
    try:
        assert (await agent.told())["registered"] == name
        yield agent
    finally:
        if process.returncode is None:
            await agent.kill()


def _tell(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


async def _main() -> None:
    settings = AgentSettings.from_env()

    async def handler(call: Call) -> None:
        _tell(await talk(call, settings.pod_name))
        async for _ in call:
            pass

    agent = Agent(handler, settings, port=int(sys.argv[1]))
    await agent.start()
    await agent.registered.wait()
    _tell({"registered": settings.pod_name})
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())

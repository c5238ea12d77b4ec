"""An agent in a process of its own, for tests that kill it. It counts its steps in the call's state, and tells of every
call and of its errors on its standard output, with the variables of an agent:

    python -m tests.support.agent.process PORT MANNER

Its handlers are as the manner says: `talks` until the call is over, `stubborn` cannot be cancelled, `blocks` keeps the
event loop.
"""

import asyncio
import json
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.mailbox.application import swallow_everything
from trunkline.agent import Agent, AgentSettings, Call
from trunkline.agent import agent as agent_module
from trunkline.agent import session as session_module

# As soon as can be a handler is known to hang or to block.
SOON_S = 0.2


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

    async def told(self, of: str = "call") -> dict[str, Any]:
        """The next line that it wrote of this."""
        assert self.process.stdout is not None
        told: dict[str, Any] = {}
        while of not in told:
            line = await asyncio.wait_for(self.process.stdout.readline(), 30)
            assert line, f"{self.name} has ended"
            told = json.loads(line)
        return told

    async def logs_error(self, words: str) -> None:
        while words not in (await self.told("error"))["error"]:
            pass

    async def stop(self) -> int:
        """How it ended."""
        self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), 30)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def agent_process(
    name: str, router_url: str, api_key: str, port: int, manner: str = "talks"
) -> AsyncIterator[AgentProcess]:
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
        manner,
        env=os.environ | own,
        stdout=asyncio.subprocess.PIPE,
    )
    agent = AgentProcess(name, process)
    try:
        assert (await agent.told("registered"))["registered"] == name
        yield agent
    finally:
        if process.returncode is None:
            await agent.kill()


def _tell(told: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


class _TellErrors(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _tell({"error": record.getMessage()})


async def _main(port: int, manner: str) -> None:
    settings = AgentSettings.from_env()

    async def handler(call: Call) -> None:
        _tell(await talk(call, settings.pod_name))
        if manner == "stubborn":
            await swallow_everything()
        elif manner == "blocks":
            threading.Event().wait()
        async for _ in call:
            pass

    async def tell_registration() -> None:
        await agent.registered.wait()
        _tell({"registered": settings.pod_name})

    if manner != "talks":
        session_module.FINISH_TIMEOUT_S = session_module.CANCEL_TIMEOUT_S = agent_module.BLOCKED_S = SOON_S
    logging.getLogger("trunkline.agent").addHandler(_TellErrors(logging.ERROR))
    agent = Agent(handler, settings, port=port)
    telling = asyncio.create_task(tell_registration())
    await agent.run()
    await telling


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2]))

"""The agent side of Trunkline: a pod that takes calls. It installs without the platform.

async def handler(call: Call) -> None:
    async for message in call:
        if isinstance(message, Media):
            await call.send_media(message.payload)

asyncio.run(Agent(handler).run())
"""

from trunkline.agent.agent import Agent
from trunkline.agent.call import Call, CallClosed
from trunkline.agent.contract import Context, Outcome, PlatformUnavailable, ReportRefused
from trunkline.agent.frames import Dtmf, Mark, Media
from trunkline.agent.settings import AgentSettings, AgentSettingsError

__all__ = [
    "Agent",
    "AgentSettings",
    "AgentSettingsError",
    "Call",
    "CallClosed",
    "Context",
    "Dtmf",
    "Mark",
    "Media",
    "Outcome",
    "PlatformUnavailable",
    "ReportRefused",
]

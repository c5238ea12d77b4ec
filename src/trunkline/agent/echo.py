"""An agent that sends back the audio it receives and hangs up at the key `#`. `python -m trunkline.agent.echo` runs
one.

SMART_ROUTER_BASE_URL=http://127.0.0.1:8080 SMART_ROUTER_API_KEY=tl_… python -m trunkline.agent.echo

Its environment configures it: POD_NAME, POD_IP, VOICE_AGENT_BASE_URL and the others of docs/reference/agent.md.
"""

import argparse
import asyncio
import logging

from trunkline.agent.agent import Agent
from trunkline.agent.call import Call, CallClosed
from trunkline.agent.contract import Outcome, PlatformUnavailable, ReportRefused
from trunkline.agent.frames import Dtmf, Media

log = logging.getLogger(__name__)


async def converse(call: Call) -> Outcome:
    """The conversation: until the person hangs up or presses `#`."""
    frames = 0
    try:
        async for message in call:
            match message:
                case Media(payload=audio):
                    frames += 1
                    await call.send_media(audio)
                case Dtmf(digit="#"):
                    return Outcome("interested", data={"frames_heard": frames})
    except CallClosed:
        log.info("%s hung up", call.call_sid)
    return Outcome("hung_up", data={"frames_heard": frames})


async def handle(call: Call) -> None:
    """One call, from its stream to its report."""
    outcome = await converse(call)
    try:
        await call.report(outcome)
    except (PlatformUnavailable, ReportRefused) as error:
        log.warning("the outcome of %s was not stored: %s", call.call_sid, error)


if __name__ == "__main__":
    argparse.ArgumentParser(
        "python -m trunkline.agent.echo", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    logging.basicConfig(level=logging.INFO)
    asyncio.run(Agent(handle).run())

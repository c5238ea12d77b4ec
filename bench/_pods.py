"""Agent pods as a process, so that their cost is nobody else's: `python -m bench._pods <port> <router's URL> <pods>`.

Each is an honest agent of the library with its heartbeat of 5 s: it takes the stream of its call, names the call in a
heartbeat, releases it at its end. `GET /records` says which calls they truly had.
"""

import asyncio
import gc
import os
import signal
import sys

import uvloop

from trunkline.agent.simulated import SimulatedPods

# As the agent library beats, and the same for an older checkout that is measured beside this one.
HEARTBEAT_S = 5.0


async def main(port: int, router_url: str, count: int) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    key = os.environ["TRUNKLINE_ADMIN_KEY"]
    async with SimulatedPods(count, router_url, key, port=port, heartbeat_interval_s=HEARTBEAT_S):
        sys.stdout.write("registered\n")
        sys.stdout.flush()
        gc.collect()
        gc.freeze()
        await stopped.wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))

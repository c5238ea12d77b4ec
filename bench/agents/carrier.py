"""The carrier as a process of its own: the simulator, and beside it what only the benchmark wants of it.

    python -m bench.agents.carrier <port of the carrier> <port of the benchmark> <shortest ring, s> <longest>

| on the second port | |
|---|---|
| `PUT /flows` | where the applet of each Exotel flow asks for its stream |
| `POST /ring` | somebody rings one of our numbers |
| `GET /ready` | |
"""

import asyncio
import gc
import signal
import sys

import msgspec
import uvloop
from aiohttp import web

from bench.agents.scenario import SEED, people
from trunkline.telephony.simulator import Simulator, SimulatorConfig
from trunkline.telephony.simulator.config import CarrierName

HOST = "127.0.0.1"


class Ring(msgspec.Struct):
    carrier: CarrierName
    to: str
    from_: str
    inbound_url: str
    status_url: str


class Carrier:
    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator

    def routes(self) -> list[web.RouteDef]:
        return [
            web.put("/flows", self._enter_flows),
            web.post("/ring", self._ring),
            web.get("/ready", self._ready),
        ]

    async def _enter_flows(self, request: web.Request) -> web.Response:
        self._simulator.flows.update(msgspec.json.decode(await request.read(), type=dict[str, str]))
        return web.Response()

    async def _ring(self, request: web.Request) -> web.Response:
        ring = msgspec.json.decode(await request.read(), type=Ring)
        self._simulator.ring(
            ring.carrier, ring.to, ring.from_, inbound_url=ring.inbound_url, status_url=ring.status_url
        )
        return web.Response()

    async def _ready(self, _request: web.Request) -> web.Response:
        return web.Response()


async def main(carrier_port: int, bench_port: int, ring_s: tuple[float, float]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    config = SimulatorConfig(port=carrier_port, seed=SEED, time_scale=1.0, behaviour=people(ring_s))
    async with Simulator(config) as simulator:
        app = web.Application()
        app.add_routes(Carrier(simulator).routes())
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, HOST, bench_port).start()
        gc.collect()
        gc.freeze()
        await stopped.wait()
        await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2]), (float(sys.argv[3]), float(sys.argv[4]))))

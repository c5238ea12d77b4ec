"""`python -m trunkline.telephony.simulator`: the simulator as a process of its own."""

import argparse
import asyncio
import os
import signal
import sys

import uvloop

from trunkline.telephony.simulator import Behaviour, SimulatedAccount, Simulator, SimulatorConfig


def config_from(arguments: list[str]) -> SimulatorConfig:
    defaults, account, behaviour = SimulatorConfig(), SimulatedAccount(), Behaviour()
    parser = argparse.ArgumentParser(prog="simulator", description="A simulated carrier on the wire.")
    parser.add_argument("--host", default=defaults.host, help="address to listen on (default: loopback)")
    parser.add_argument("--port", type=int, default=9290)
    parser.add_argument(
        "--seed", type=int, default=defaults.seed, help="decides every call's fate and faults"
    )
    parser.add_argument("--time-scale", type=float, default=0.02, help="real seconds per simulated second")
    parser.add_argument("--account-sid", default=account.sid)
    parser.add_argument("--auth-token", default=account.auth_token)
    parser.add_argument("--calls-per-s", type=float, default=account.calls_per_s)
    parser.add_argument("--answer", type=float, default=behaviour.answer, help="share of calls answered")
    parser.add_argument("--busy", type=float, default=behaviour.busy)
    parser.add_argument("--no-answer", type=float, default=behaviour.no_answer)
    parser.add_argument("--failed", type=float, default=behaviour.failed)
    given = parser.parse_args(arguments)
    try:
        return SimulatorConfig(
            host=given.host,
            port=given.port,
            seed=given.seed,
            time_scale=given.time_scale,
            accounts=(SimulatedAccount(given.account_sid, given.auth_token, given.calls_per_s),),
            behaviour=Behaviour(
                answer=given.answer, busy=given.busy, no_answer=given.no_answer, failed=given.failed
            ),
        )
    except ValueError as error:
        parser.error(str(error))


async def serve(config: SimulatorConfig) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    async with Simulator(config) as simulator:
        sys.stdout.write(f"simulated carrier on {simulator.base_url}\n")
        sys.stdout.flush()
        await stopped.wait()


def main() -> int:
    config = config_from(sys.argv[1:])
    try:
        uvloop.run(serve(config))
    except OSError as error:
        sys.stderr.write(f"cannot listen on {config.host}:{config.port}: {os.strerror(error.errno or 0)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

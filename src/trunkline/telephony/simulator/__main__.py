"""`python -m trunkline.telephony.simulator`: the simulator as a process of its own."""

import argparse
import asyncio
import gc
import os
import signal
import sys

import uvloop

from trunkline.telephony.simulator import Behaviour, SimulatedAccount, Simulator, SimulatorConfig
from trunkline.telephony.simulator.config import ACCOUNTS


def config_from(arguments: list[str]) -> SimulatorConfig:
    defaults, account, behaviour = SimulatorConfig(), SimulatedAccount(), Behaviour()
    parser = argparse.ArgumentParser(
        prog="trunkline simulator", description="A simulated carrier on the wire."
    )
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
            accounts=(
                SimulatedAccount(given.account_sid, given.auth_token, given.calls_per_s),
                *ACCOUNTS[1:],
            ),
            behaviour=Behaviour(
                answer=given.answer, busy=given.busy, no_answer=given.no_answer, failed=given.failed
            ),
        )
    except ValueError as error:
        parser.error(str(error))


def _shown(account: SimulatedAccount) -> str:
    """The credentials to enter at Trunkline. They are no secrets."""
    match account.carrier:
        case "twilio":
            return f"account_sid={account.sid} auth_token={account.auth_token}"
        case "plivo":
            return f"auth_id={account.sid} auth_token={account.auth_token}"
        case "exotel":
            return f"sid={account.sid} api_key={account.api_key} api_token={account.auth_token}"
        case "vapi":
            return f"api_key={account.auth_token}"


async def serve(config: SimulatorConfig) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopped.set)
    async with Simulator(config) as simulator:
        sys.stdout.write(f"simulated carrier on {simulator.base_url}\n")
        for account in config.accounts:
            sys.stdout.write(f"  {account.carrier}: {_shown(account)}\n")
        sys.stdout.flush()
        _freeze_gc_after_startup()
        await stopped.wait()


def _freeze_gc_after_startup() -> None:
    """Otherwise the collector scans the objects of the startup again and again, 40 ms each time."""
    gc.collect()
    gc.freeze()


def main(arguments: list[str] | None = None) -> int:
    config = config_from(sys.argv[1:] if arguments is None else arguments)
    try:
        uvloop.run(serve(config))
    except OSError as error:
        sys.stderr.write(f"cannot listen on {config.host}:{config.port}: {os.strerror(error.errno or 0)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

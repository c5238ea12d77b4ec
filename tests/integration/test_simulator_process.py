"""The simulator as a process: it starts, prints its URL, stops on a signal, and fails with one line."""

import asyncio
import signal
import socket
import sys

import aiohttp
import pytest

from trunkline.telephony.simulator.__main__ import config_from


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "trunkline.telephony.simulator",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_the_simulator_prints_its_url_and_stops_on_a_signal(stop: signal.Signals) -> None:
    process = await start("--port", "0")
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    url = line.split()[-1]
    assert url.startswith("http://127.0.0.1:")
    async with aiohttp.ClientSession() as http, http.get(f"{url}/ledger") as response:
        assert await response.json() == {"dials": [], "next": None, "total": 0}
    process.send_signal(stop)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


async def test_the_simulator_reports_a_taken_port_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        process = await start("--port", port)
        _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().splitlines() == [f"cannot listen on 127.0.0.1:{port}: Address already in use"]


def test_the_simulator_listens_on_loopback_by_default() -> None:
    assert config_from([]).host == "127.0.0.1"
    assert config_from(["--host", "0.0.0.0"]).host == "0.0.0.0"


@pytest.mark.parametrize(
    ("option", "word"),
    [("--answer", "shares"), ("--time-scale", "time_scale"), ("--calls-per-s", "calls_per_s")],
)
def test_the_simulator_refuses_invalid_options(
    option: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        config_from([option, "-1"])
    assert stopped.value.code == 2
    assert word in capsys.readouterr().err

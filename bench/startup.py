"""How long does the platform take to be ready, and what does it cost while it has nothing to do?

Beside it, in the same run: the engines alone, started by the same module. What is left is ours.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from bench.report import Report, finish
from trunkline.embedded import Engines
from trunkline.embedded.ports import free_port

IDLE_S = 20.0
COLD_MAX_S, WARM_MAX_S, MEMORY_MAX_MB, CPU_MAX_PERCENT = 10.0, 3.0, 250.0, 2.0


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cold_s, _ = start(Path(folder))
        warm_s, idle = start(Path(folder), measure=True)
        engines_s = asyncio.run(start_engines(Path(folder)))
    assert idle is not None
    memory_mb, cpu_percent = idle
    met = (
        cold_s < COLD_MAX_S
        and warm_s < WARM_MAX_S
        and memory_mb < MEMORY_MAX_MB
        and cpu_percent < CPU_MAX_PERCENT
    )
    finish(
        Report(
            "startup",
            {
                "cold_s": round(cold_s, 2),
                "warm_s": round(warm_s, 2),
                "memory_mb": round(memory_mb),
                "cpu_percent": round(cpu_percent, 2),
            },
            {"engines alone": {"warm_s": round(engines_s, 2)}},
            round(warm_s / engines_s, 2),
            f"cold < {COLD_MAX_S:g} s, warm < {WARM_MAX_S:g} s, our processes idle < {MEMORY_MAX_MB:g} MB "
            f"and < {CPU_MAX_PERCENT:g} % of a core",
            met,
        )
    )


def start(folder: Path, *, measure: bool = False) -> tuple[float, tuple[float, float] | None]:
    """Start `trunkline up`, wait for /ready, perhaps watch it idle, stop it."""
    port, metrics_port = free_port(), free_port()
    environ = {
        **os.environ,
        "HTTP_PORT": str(port),
        "METRICS_PORT": str(metrics_port),
        "LOG_LEVEL": "warning",
    }
    trunkline = shutil.which("trunkline", path=str(Path(sys.executable).parent)) or "trunkline"
    began = time.monotonic()
    process = psutil.Popen([trunkline, "up", "--data-dir", str(folder)], env=environ, stdout=-3)
    try:
        wait_ready(f"http://127.0.0.1:{port}/ready", process)
        took_s = time.monotonic() - began
        return took_s, idle_cost(process) if measure else None
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def idle_cost(process: psutil.Popen) -> tuple[float, float]:
    """Memory and CPU of our own processes; the engines' are theirs."""
    time.sleep(2.0)  # the first runs of every loop
    ours = [process, *(p for p in process.children(recursive=True) if "python" in p.name())]
    before, began = sum(cpu_s(p) for p in ours), time.monotonic()
    time.sleep(IDLE_S)
    used_s = sum(cpu_s(p) for p in ours) - before
    memory_mb = sum(p.memory_info().rss for p in ours) / 1e6
    return memory_mb, 100 * used_s / (time.monotonic() - began)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def wait_ready(url: str, process: psutil.Popen) -> None:
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("the platform ended before it was ready")


async def start_engines(folder: Path) -> float:
    began = time.monotonic()
    async with Engines(folder):
        return time.monotonic() - began


if __name__ == "__main__":
    main()

"""A real nginx with a configuration of ours."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.waiting import POLL_S, eventually
from trunkline.embedded.ports import free_port

NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
MAIN = """
daemon off;
worker_processes 1;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  include {folder}/site.conf;
}}
"""


def servers(*urls: str) -> str:
    """Processes of the platform, as the templates want them: each once, and once more should all be passed over."""
    hosts = [url.removeprefix("http://") for url in urls]
    first = [f"server {host} max_fails=1 fail_timeout=2s;" for host in hosts]
    return " ".join([*first, *(f"server {host} backup max_fails=0;" for host in hosts)])


@asynccontextmanager
async def serving(template: Path, values: Mapping[str, str], folder: Path) -> AsyncIterator[str]:
    """`host:port` where it listens. `values` fill the template in, as `envsubst` would."""
    assert NGINX is not None, "ask before"
    address = f"127.0.0.1:{free_port()}"
    _write_config(template, {"CACHE": str(folder / "cache"), **values, "LISTEN": address}, folder)
    process = await asyncio.create_subprocess_exec(NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"))
    try:
        await eventually(lambda: _answers(address))
        yield address
    finally:
        process.terminate()
        await process.wait()


class Pulse:
    """Asks nginx again and again for something that it refuses by itself."""

    def __init__(self) -> None:
        self._heard_s = time.monotonic()
        self._longest_s = 0.0

    @property
    def longest_s(self) -> float:
        """The longest time without an answer: nginx or this process stood still for about as long."""
        return max(self._longest_s, time.monotonic() - self._heard_s)

    async def feel(self, address: str) -> None:
        host, _, port = address.partition(":")
        while True:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                assert b" 400 " in await reader.readline(), "a request without a host"
            finally:
                writer.close()
            self._longest_s = self.longest_s
            self._heard_s = time.monotonic()
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def pulse(address: str) -> AsyncIterator[Pulse]:
    felt = Pulse()
    feeling = asyncio.create_task(felt.feel(address))
    try:
        yield felt
    finally:
        feeling.cancel()
        with suppress(asyncio.CancelledError):
            await feeling


def _write_config(template: Path, values: Mapping[str, str], folder: Path) -> None:
    text = template.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "site.conf").write_text(text, encoding="utf-8")
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user), encoding="utf-8")


async def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True

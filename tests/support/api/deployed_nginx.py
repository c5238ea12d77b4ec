"""nginx as `deploy/nginx` sets it up for pods that register themselves, with carriers led to the processes of the role
`api` and pods to those of `router`."""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.api import nginx

TEMPLATE = Path(__file__).parents[3] / "deploy" / "nginx" / "self-registered.conf.template"
# Locations of carriers and of everybody else but the pods.
_OF_API = re.compile(r"^  location (?:~ \^/webhooks|/webhooks/|/ \{).*?^  \}$", re.MULTILINE | re.DOTALL)
# For whoever looks for the reason of something.
_LOG = """log_format requests '$msec $request_time $status $upstream_addr $upstream_status $request_uri';
access_log ${LOG} requests;
"""


@asynccontextmanager
async def serving(
    api: Sequence[str], router: Sequence[str], router_key: str, folder: Path
) -> AsyncIterator[str]:
    """`host:port` where it listens."""
    values = {
        "APIS": nginx.servers(*api),
        "ROUTERS": nginx.servers(*router),
        "ROUTER_KEY": router_key,
        "FALLBACK": "127.0.0.1:1",  # there are no agents outside the pools
        "LOG": str(folder / "requests.log"),
    }
    async with nginx.serving(_write_template(folder), values, folder) as address:
        yield address


def _write_template(folder: Path) -> Path:
    folder.mkdir()
    derived = folder / "site.conf.template"
    derived.write_text(_derived(TEMPLATE.read_text(encoding="utf-8")), encoding="utf-8")
    return derived


def _derived(template: str) -> str:
    led, count = _OF_API.subn(lambda found: found[0].replace("http://router", "http://api"), template)
    if count < 3:
        raise RuntimeError(f"{TEMPLATE} has other locations than this knows")
    return f"{_LOG}upstream api {{ zone api 64k; ${{APIS}} keepalive 16; }}\n{led}"

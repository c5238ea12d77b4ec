"""`trunkline console`: prints a sign-in link, by a key on this machine."""

import asyncio
from pathlib import Path

from trunkline.cli.control import TIMEOUT_S, ControlCommandError
from trunkline.client.errors import ApiError, Unreachable
from trunkline.client.transport import Transport


def sign_in_link(url: str, key: str, data_dir: Path) -> str:
    file = data_dir / "admin.key"
    if not key and file.is_file():
        key = file.read_text(encoding="utf-8").strip()
    if not key:
        raise ControlCommandError("Name an API key with --key, or run this where the data folder is.")
    return asyncio.run(_ask(url.rstrip("/"), key))


async def _ask(url: str, key: str) -> str:
    transport = Transport(url, key, TIMEOUT_S)
    try:
        made = await transport.post("/console/links", {})
        return f"{url}{made['path']}"
    except (ApiError, Unreachable, ValueError) as error:
        raise ControlCommandError(str(error)) from error
    finally:
        await transport.close()

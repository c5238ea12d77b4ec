"""`make screenshots`: the images of the README, taken from the real console while the demo calls people.

They are made anew as a whole, so that a change of the console is seen in all of them.
"""

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.async_api import Page, async_playwright, expect

from tests.support.waiting import eventually
from trunkline.client.transport import Transport
from trunkline.embedded.ports import free_port

IMAGES = Path(__file__).parents[2] / "docs" / "images"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
API = "/api/v1"
# At 25 calls a second they take three quarters of a minute: enough for charts that show something.
LEADS = 1200
SLICES_MIN = 8
STOPPED = "demo-bakery"
PATIENCE_S = 240.0
DESK = {"width": 1280, "height": 1040}
PHONE = {"width": 390, "height": 844}


@asynccontextmanager
async def demo() -> AsyncIterator[tuple[str, Transport]]:
    """A demo that runs: where it is, and its API."""
    with TemporaryDirectory() as folder:
        ports = {"HTTP_PORT": str(free_port()), "METRICS_PORT": str(free_port())}
        process = await asyncio.create_subprocess_exec(
            *(
                Path(sys.executable).with_name("trunkline"),
                "demo",
                "--leads",
                str(LEADS),
                "--data-dir",
                folder,
            ),
            env=os.environ | ports | {"COLUMNS": "1000"},
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None, "it was asked for"
        try:
            async for line in process.stdout:
                if link := re.search(r"https?://\S+/console/enter\S+", line.decode()):
                    key = (Path(folder) / "admin.key").read_text(encoding="utf-8").strip()
                    url = f"http://127.0.0.1:{ports['HTTP_PORT']}"
                    transport = Transport(url, key, 10)
                    # What it goes on to say must be read, or it would wait.
                    rest = asyncio.create_task(process.stdout.read())
                    try:
                        yield link[0], transport
                    finally:
                        await transport.close()
                        process.send_signal(signal.SIGINT)
                        await rest
                    return
            raise SystemExit("the demo ended before it began")
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            await process.wait()


async def furnish(api: Transport) -> dict[str, str]:
    """What the demo does not have by itself; and who is shown."""
    await until(api, lambda seen: len(seen["slices"]) >= 2)
    campaign = await api.post(f"{API}/campaigns", {"name": "Renewals in May", "merchant_id": "demo-shop"})
    rows = [{"phone": f"+1212555{number:04d}"} for number in range(100, 180)]
    await api.post(f"{API}/campaigns/{campaign['id']}/leads", rows)  # type: ignore[arg-type]
    await api.post(f"{API}/campaigns/{campaign['id']}/start", {})
    # One that nobody else waits for: whoever is stopped and goes on again is late, and the charts are about the others.
    await api.post(
        f"{API}/merchants", {"id": STOPPED, "name": "Bakery", "default_pool": "demo", "reseller_id": "demo"}
    )
    await api.put(f"{API}/controls/merchant/{STOPPED}", {"reason": "complaints about the prompt"})
    waiting = {"merchant_id": STOPPED, "phone": "+12125550199", "request_id": "cake-17"}
    # A stop is known everywhere within a second: due after that, and long before its picture is taken.
    due_at = datetime.now(UTC) + timedelta(seconds=5)
    lead = await api.post(f"{API}/leads", waiting | {"scheduled_at": due_at.isoformat()})
    numbers = await api.get(f"{API}/numbers")
    return {"campaign": campaign["id"], "lead": lead["id"], "number": numbers["items"][-1]["id"]}


async def until(api: Transport, is_so: Callable[[Any], bool]) -> None:
    await eventually(lambda: _look(api, is_so), timeout_s=PATIENCE_S, what="the charts are full")


async def _look(api: Transport, is_so: Callable[[Any], bool]) -> bool:
    return is_so(await api.get(f"{API}/overview"))


async def shoot(
    page: Page, url: str, path: str, name: str, *, scheme: Any = "light", size: Any = DESK
) -> None:
    await page.set_viewport_size(size)
    await page.emulate_media(color_scheme=scheme)
    await page.goto(f"{url}/console{path}")
    await expect(page.locator("#live-state")).to_have_text("live", timeout=30_000)
    await page.screenshot(path=IMAGES / f"{name}.png")


async def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    async with demo() as (link, api), async_playwright() as playwright:
        shown = await furnish(api)
        await until(api, lambda seen: len(seen["slices"]) >= SLICES_MIN)
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(device_scale_factor=1.5)
        await page.goto(link)
        url = link.partition("/console")[0]
        await page.wait_for_url(f"{url}/console")
        await shoot(page, url, "", "overview")
        await shoot(page, url, "", "overview-dark", scheme="dark")
        await shoot(page, url, "", "overview-phone", size=PHONE)
        await shoot(page, url, "/pods", "pods")
        await shoot(page, url, f"/numbers/{shown['number']}", "number", scheme="dark")
        await shoot(page, url, f"/campaigns/{shown['campaign']}", "campaign")
        await shoot(page, url, f"/leads/{shown['lead']}", "lead")
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())

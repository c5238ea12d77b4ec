"""One server and one browser for all tests of a module. Without Chromium they are skipped, and say so."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.support.api.world import ADMIN_KEY
from tests.support.console.world import Site, served

if TYPE_CHECKING:
    from trunkline.embedded import Engines
    from trunkline.testing.servers import Background, Databases

# Playwright's own 5 s leave little on a shared machine: a live page looks every 2 s.
expect.set_options(timeout=20_000)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def site(
    _background: "Background", _databases: "Databases", _engines: "Engines", request: pytest.FixtureRequest
) -> Iterator[Site]:
    prefix = request.module.__name__.rpartition(".")[2]
    with (
        _databases.fresh(migrated=True) as database_url,
        _background.opened(served(database_url, _engines.redis_url, prefix)) as (url, world),
    ):
        yield Site(url, world, _background)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser said against a page. A test that provokes something takes it out."""
    return []


@pytest.fixture
def stranger(browser: Browser, complaints: list[str]) -> Iterator[Page]:
    """Nobody is signed in. Anything that the browser complains about fails the test."""

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(15_000)
    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    yield page
    context.close()
    assert complaints == []


@pytest.fixture
def page(stranger: Page, site: Site) -> Page:
    """Signed in as the platform's administrator."""
    stranger.goto(f"{site.url}/console/sign-in")
    stranger.get_by_label("API key").fill(ADMIN_KEY)
    stranger.get_by_role("button", name="Sign in").click()
    stranger.wait_for_url(f"{site.url}/console")
    return stranger

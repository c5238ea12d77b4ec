"""Every page in a real browser: it opens without errors, is accessible, and stays live."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect

from tests.support.console.world import Site, addresses, park, put_on_the_line
from trunkline.console.sitemap import PAGES

_PAUSE = "INSERT INTO job_pauses (job_type, reason, paused_by) VALUES ('export', 'to be seen', 'test')"


@pytest.fixture(scope="module")
def ids(site: Site) -> dict[str, str]:
    """An object of every kind, and a call on the third channel of a number."""
    ids = site.background.run(site.world.api.objects_of("a1"))
    called = put_on_the_line(site.world.api, ids["lead_id"], ids["number_id"], "CA-of-the-third")
    site.background.run(called)
    site.make_lead("a1", "waits", scheduled_at="2031-01-01T00:00:00Z")
    return ids | {"name": site.background.run(park(site.world.api, "agent-0", "CA-of-the-third"))}


def violations(page: Page) -> list[str]:
    found: Any = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html']} {node['failureSummary']}" for each in found for node in each["nodes"]
    ]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_is_accessible_and_fits_a_phone(
    page: Page, site: Site, ids: dict[str, str], path: str
) -> None:
    [address] = addresses([path], ids)
    answer = page.goto(f"{site.url}{address}")
    assert answer is not None
    assert answer.status == 200
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator("#live-state")).to_have_text("live")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert violations(page) == [], scheme
    page.set_viewport_size({"width": 375, "height": 700})
    wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0, "a phone does not have to scroll sideways"


def test_the_sign_in_page_is_accessible_by_keyboard(
    stranger: Page, site: Site, complaints: list[str]
) -> None:
    stranger.goto(f"{site.url}/console/leads?status=BACKLOG")
    assert violations(stranger) == []
    expect(stranger.get_by_label("API key")).to_be_focused()
    stranger.keyboard.type("not-a-key-of-anybody")
    stranger.keyboard.press("Enter")
    expect(stranger.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
    # Chromium reports an answer of 403 by itself.
    assert [text for text in complaints if "403" not in text] == []
    complaints.clear()


def test_a_sign_in_link_opens_the_console_without_a_key(stranger: Page, site: Site) -> None:
    link = site.world.console.link_for("admin-key-of-the-tests")
    stranger.goto(f"{site.url}{link}")
    stranger.wait_for_url(f"{site.url}/console")
    expect(stranger.get_by_role("heading", name="Overview")).to_be_visible()


def test_an_open_page_shows_a_new_lead(page: Page, site: Site, ids: dict[str, str]) -> None:
    page.goto(f"{site.url}/console/leads?merchant_id=a2")
    expect(page.get_by_text("No lead matches.")).to_be_visible()
    site.make_lead("a2", "while-open", scheduled_at="2031-01-01T00:00:00Z")
    expect(page.get_by_text("while-open")).to_be_visible()


def test_a_live_update_does_not_overwrite_a_field_being_edited(
    page: Page, site: Site, ids: dict[str, str]
) -> None:
    page.goto(f"{site.url}/console/jobs")
    expect(page.locator("#live-state")).to_have_text("live")
    field = page.get_by_label("Why pause deliver_webhook")
    field.fill("half a sen")
    with page.expect_console_message(lambda message: message.text == "live again"):
        page.evaluate("stream.addEventListener('live', () => console.log('live again'))")
        site.ask(_PAUSE)
    expect(field).to_have_value("half a sen")
    field.fill("")
    page.keyboard.press("Tab")
    expect(page.get_by_text("to be seen")).to_be_visible()


def test_the_keyboard_reaches_the_page_and_the_search(page: Page, site: Site) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("+14155550123")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/leads?find=*")


def test_the_dark_theme_can_be_chosen(page: Page, site: Site) -> None:
    page.locator(".me summary").click()
    page.get_by_role("button", name="dark").click()
    page.wait_for_url(f"{site.url}/console")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_console_works_without_javascript(browser: Browser, site: Site) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site.url}/console/sign-in")
    page.fill("#key", "admin-key-of-the-tests")
    page.click("button")
    page.goto(f"{site.url}/console/control")
    expect(page.get_by_role("heading", name="Kill switch")).to_be_visible()
    context.close()

"""A newcomer, who has seen the console never before: five questions, answered from the overview on by what can be seen.

No test here types an address: an answer that needs one is not found in the console.
"""

import pytest
from playwright.sync_api import Page, expect

from tests.support.console.world import Site, park, put_on_the_line

_YESTERDAY = """
INSERT INTO audit_log (at, actor, action, subject, reason)
SELECT now() - interval '1 day', 'key:' || id, 'number.changed', '+14155550100', 'the carrier asked us to'
FROM api_keys WHERE name = $1
RETURNING actor
"""


@pytest.fixture(scope="module")
def lead(site: Site) -> dict[str, str]:
    """One that waits, of a merchant that nobody has stopped yet."""
    made = site.make_lead("a2", "order-17", phone="+14155550177")
    return {name: str(made[name]) for name in ("id", "phone")}


@pytest.fixture(scope="module")
def call(site: Site) -> str:
    """On the third channel of a number, with a pod."""
    lead_id = site.make_lead("a1", "on-the-line", phone="+14155550123")["id"]
    api, call = site.world.api, "CA-of-the-third"
    site.background.run(put_on_the_line(api, lead_id, api.numbers["a1-pool"], call))
    site.background.run(park(api, "agent-0", call))
    return call


def goes_to(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Console").get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()


def finds(page: Page, words: str) -> None:
    box = page.get_by_role("searchbox", name="Find a lead").first
    box.fill(words)
    box.press("Enter")
    page.wait_for_url("**/leads?find=*")
    page.locator("#live tbody").get_by_role("link", name="…").first.click()


@pytest.mark.parametrize("words", ["+14155550177", "order-17"])
def test_a_search_leads_to_the_reason_why_a_lead_was_not_called(
    page: Page, lead: dict[str, str], words: str
) -> None:
    finds(page, words)
    expect(page.get_by_role("heading", level=1)).to_contain_text(lead["phone"])
    why = page.locator(".why")
    expect(why).to_contain_text("Every gate")
    expect(why.get_by_role("heading", level=2)).not_to_have_text("")


def test_a_number_page_shows_which_call_holds_each_channel(page: Page, site: Site, call: str) -> None:
    goes_to(page, "Numbers")
    e164 = site.ask("SELECT e164 FROM numbers WHERE id = $1::uuid", site.world.api.numbers["a1-pool"])
    page.get_by_role("link", name=e164).click()
    third = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="3", exact=True))
    expect(third).to_contain_text("+14155550123")
    third.get_by_role("link", name="…").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("+14155550123")


def test_the_pods_page_finds_the_pod_of_a_call(page: Page, call: str) -> None:
    goes_to(page, "Pods")
    page.get_by_label("Which pod has the call").fill(call)
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("status").filter(has_text=call)).to_contain_text("agent-0")
    page.get_by_role("status").get_by_role("link", name="agent-0").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("agent-0")
    expect(page.get_by_text(call)).to_be_visible()


def test_a_search_for_a_call_id_leads_to_its_pod(page: Page, call: str) -> None:
    page.get_by_role("searchbox", name="Find a lead").first.fill(call)
    page.keyboard.press("Enter")
    page.get_by_role("link", name="which pod has it").click()
    expect(page.get_by_role("status").filter(has_text=call)).to_contain_text("agent-0")


def test_the_audit_log_shows_yesterdays_changes_by_actor(page: Page, site: Site) -> None:
    site.background.run(site.world.api.make_key("admin", name="night shift"))
    actor = site.ask(_YESTERDAY, "night shift")
    goes_to(page, "Audit log")
    page.get_by_role("link", name="Yesterday").click()
    line = page.locator("tbody tr")
    expect(line).to_have_count(1)
    expect(line).to_contain_text("number.changed")
    expect(line).to_contain_text("the carrier asked us to")
    line.get_by_role("link", name="night shift").click()
    expect(page.get_by_label("Who", exact=True)).to_have_value(actor)
    expect(page.locator("tbody tr")).to_have_count(1)


def test_stopping_a_merchant_is_shown_as_the_reason_on_its_leads(
    page: Page, site: Site, lead: dict[str, str]
) -> None:
    page.get_by_role("link", name="Stop a2…").click()
    expect(page.get_by_label("Which")).to_have_value("a2")
    stop = page.get_by_role("region", name="Add a stop")
    stop.get_by_label("Reason").fill("complaints about the prompt")
    stop.get_by_role("button", name="Stop").click()
    expect(page.locator(".said.done")).to_contain_text("a2 is stopped")
    assert site.ask("SELECT reason FROM controls WHERE scope = 'merchant' AND subject = 'a2'") == (
        "complaints about the prompt"
    )
    assert site.ask("SELECT count(*) FROM controls") == 1, "nobody else is stopped"
    finds(page, lead["phone"])
    expect(page.locator(".why")).to_contain_text("complaints about the prompt")

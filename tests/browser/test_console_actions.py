"""Every action in a real browser, and its effect in the database."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.console.world import Site, park
from trunkline.console.sitemap import ACTIONS

LATER = "2031-01-01T00:00:00Z"
_DEAD = """
INSERT INTO job_dead (id, created_at, died_at, fence, priority, attempt_count, max_attempts, job_type, payload,
                      last_error_code, last_error_message)
SELECT gen_random_uuid(), now(), now(), 1, 50, 3, 3, $1, '{}', 'timeout', 'the receiver did not answer'
RETURNING id
"""
_PENDING = """
INSERT INTO job_outbox (id, job_type, payload, priority, max_attempts, run_at)
SELECT gen_random_uuid(), 'deliver_webhook', '{}', 50, 3, now() + interval '1 hour' RETURNING id
"""
Try = Callable[[Page, Site], None]
TRIES: dict[str, Try] = {}


def tries(path: str) -> Callable[[Try], Try]:
    """This is how the action is tried. A test says that none is left out."""

    def keep(attempt: Try) -> Try:
        TRIES[path] = attempt
        return attempt

    return keep


def said(page: Page) -> None:
    expect(page.locator(".said.done")).to_be_visible()


def lead_status(site: Site, lead_id: str) -> str:
    return str(site.ask("SELECT status || coalesce(outcome, '') FROM leads WHERE id = $1::uuid", lead_id))


@tries("/leads/{lead_id}/call-now")
def call_now(page: Page, site: Site) -> None:
    lead = site.make_lead("a1", "call-now", scheduled_at=LATER)
    page.goto(f"{site.url}/console/leads?merchant_id=a1")
    page.get_by_role("link", name=f"…{lead['id'][-8:]}").click()
    expect(page.locator(".why")).to_contain_text("due")
    page.get_by_role("button", name="Call now").click()
    said(page)
    assert site.ask("SELECT due_at <= clock_timestamp() FROM leads WHERE id = $1::uuid", lead["id"])


@tries("/leads/{lead_id}/change")
def change_lead(page: Page, site: Site) -> None:
    lead = site.make_lead("a1", "change", scheduled_at=LATER)
    page.goto(f"{site.url}/console/leads/{lead['id']}")
    page.get_by_label("Priority").fill("7")
    page.get_by_label("Call at (UTC)").fill("2032-03-04T05:06")
    page.get_by_role("button", name="Change").click()
    said(page)
    changed = site.ask(
        "SELECT priority || ' ' || (due_at AT TIME ZONE 'UTC') FROM leads WHERE id = $1::uuid", lead["id"]
    )
    assert changed == "7 2032-03-04 05:06:00"


@tries("/leads/{lead_id}/abort")
def abort_lead(page: Page, site: Site) -> None:
    lead = site.make_lead("a1", "abort", scheduled_at=LATER)
    page.goto(f"{site.url}/console/leads/{lead['id']}")
    page.get_by_label("Abort, because").fill("sold out")
    page.get_by_role("button", name="Abort").click()
    said(page)
    assert lead_status(site, lead["id"]) == "FINISHEDABORTED"
    expect(page.locator(".timeline")).to_contain_text("sold out")


def finish(site: Site, lead_id: str, outcome: str) -> None:
    site.ask(
        "UPDATE leads SET status = 'FINISHED', outcome = $2, finished_at = now() WHERE id = $1::uuid RETURNING 1",
        lead_id,
        outcome,
    )


@tries("/leads/{lead_id}/reopen")
def reopen_a_lead(page: Page, site: Site) -> None:
    lead = site.make_lead("a1", "again", phone="+14155550178")
    finish(site, lead["id"], "NO_AGENT")
    page.goto(f"{site.url}/console/leads/{lead['id']}")
    page.get_by_label("Call again, because").fill("agents were away")
    page.get_by_role("button", name="Call again").click()
    said(page)
    assert lead_status(site, lead["id"]) == "BACKLOG"
    expect(page.locator(".timeline")).to_contain_text("agents were away")


@tries("/leads/reopen")
def reopen_all_that_found_no_agent(page: Page, site: Site) -> None:
    """Counted first; what was typed stays for the order."""
    leads = [site.make_lead("a2", f"again-{n}", phone=f"+1415555018{n}") for n in range(3)]
    for lead in leads:
        finish(site, lead["id"], "NO_AGENT")
    page.goto(f"{site.url}/console/leads?merchant_id=a2")
    page.get_by_text("Call finished leads again").click()
    page.get_by_label("Since (UTC)").fill("2020-01-01T09:00")
    page.get_by_label("Call again, because").fill("agents were away")
    page.get_by_role("button", name="How many?").click()
    expect(page.locator(".said.done")).to_contain_text("3 leads fit")
    assert {lead_status(site, lead["id"]) for lead in leads} == {"FINISHEDNO_AGENT"}
    expect(page.get_by_label("Call again, because")).to_have_value("agents were away")
    page.get_by_role("button", name="Call them again").click()
    expect(page.locator(".said.done")).to_contain_text("3 leads will be called again")
    assert {lead_status(site, lead["id"]) for lead in leads} == {"BACKLOG"}


@tries("/leads/{lead_id}/never-call")
def never_call(page: Page, site: Site) -> None:
    lead = site.make_lead("a1", "never", scheduled_at=LATER, phone="+14155550177")
    page.goto(f"{site.url}/console/leads/{lead['id']}")
    page.get_by_label("Never call this person again, because").fill("asked us to")
    page.get_by_role("button", name="Add to the do-not-call list").click()
    said(page)
    assert site.ask("SELECT merchant_id FROM do_not_call WHERE phone = '+14155550177'") == "a1"


@tries("/numbers/{number_id}/status")
def drain_a_number(page: Page, site: Site) -> None:
    number_id = site.world.api.numbers["a2-pool"]
    page.goto(f"{site.url}/console/numbers/{number_id}")
    page.get_by_role("button", name="draining").click()
    said(page)
    assert site.ask("SELECT status FROM numbers WHERE id = $1::uuid", number_id) == "draining"


@tries("/jobs/types/{job_type}/pause")
def pause_jobs(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/console/jobs")
    page.get_by_label("Why pause deliver_webhook").fill("the receiver is being repaired")
    page.locator("tr", has_text="deliver_webhook").get_by_role("button", name="Pause").click()
    said(page)
    assert (
        site.ask("SELECT reason FROM job_pauses WHERE job_type = 'deliver_webhook'")
        == "the receiver is being repaired"
    )


@tries("/jobs/types/{job_type}/resume")
def resume_jobs(page: Page, site: Site) -> None:
    if not site.ask("SELECT count(*) FROM job_pauses"):
        pause_jobs(page, site)
    page.goto(f"{site.url}/console/jobs")
    page.locator("tr", has_text="deliver_webhook").get_by_role("button", name="Resume").click()
    said(page)
    assert site.ask("SELECT count(*) FROM job_pauses") == 0


@tries("/jobs/replay")
def replay_all(page: Page, site: Site) -> None:
    dead = site.ask(_DEAD, "deliver_webhook")
    page.goto(f"{site.url}/console/jobs")
    expect(page.get_by_text("the receiver did not answer").first).to_be_visible()
    page.get_by_role("button", name="Replay all").click()
    said(page)
    assert site.ask("SELECT count(*) FROM job_dead") == 0
    assert site.ask("SELECT count(*) FROM job_outbox WHERE id = $1", dead) == 1


@tries("/jobs/{job_id}/retry")
def replay_one(page: Page, site: Site) -> None:
    dead = site.ask(_DEAD, "deliver_webhook")
    page.goto(f"{site.url}/console/jobs/{dead}")
    page.get_by_role("button", name="Replay").click()
    said(page)
    assert site.ask("SELECT count(*) FROM job_dead WHERE id = $1", dead) == 0


@tries("/jobs/{job_id}/cancel")
def cancel_a_job(page: Page, site: Site) -> None:
    job = site.ask(_PENDING)
    page.goto(f"{site.url}/console/jobs/{job}")
    page.get_by_label("Cancel, because").fill("not needed")
    page.get_by_role("button", name="Cancel").click()
    said(page)
    assert site.ask("SELECT outcome FROM job_history WHERE id = $1", job) == "cancelled"


@tries("/control/stop")
def stop_one_merchant(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/console/control")
    page.get_by_label("Which").fill("a2")
    page.get_by_role("textbox", name="Reason", exact=True).fill("complaints")
    page.get_by_role("button", name="Stop", exact=True).click()
    said(page)
    assert site.ask("SELECT reason FROM controls WHERE scope = 'merchant' AND subject = 'a2'") == "complaints"
    expect(page.get_by_role("row", name="merchant a2")).to_contain_text("stopped")


@tries("/control/resume")
def kill_and_resume(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/console/control")
    page.get_by_label("Stop everything, because").fill("wrong prompt")
    page.get_by_role("button", name="Turn the kill switch on").click()
    expect(page.locator(".banner.bad")).to_contain_text("The kill switch is on")
    assert site.ask("SELECT ends_at IS NULL FROM controls WHERE scope = 'kill_switch'")
    page.get_by_label("Turn it off, because").fill("prompt repaired")
    page.get_by_role("button", name="Turn the kill switch off").click()
    said(page)
    assert site.ask("SELECT ends_at <= clock_timestamp() FROM controls WHERE scope = 'kill_switch'")
    page.goto(f"{site.url}/console/audit?action=control")
    expect(page.get_by_role("cell", name="prompt repaired")).to_be_visible()


@tries("/control/flags/{flag}")
def set_a_flag(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/console/control")
    page.get_by_text("Change event_dispatch").click()
    form = page.locator("#flag-event_dispatch")
    form.get_by_label("Percentage of tenants that are not named").fill("25")
    form.get_by_label("Always on for these resellers").fill("a, b")
    form.get_by_label("Always off for these merchants").fill("a2")
    form.get_by_label("Because", exact=True).fill("first quarter")
    form.get_by_role("button", name="Set event_dispatch", exact=True).click()
    said(page)
    row = "SELECT concat_ws(' ', enabled, percentage, resellers, merchants) FROM flags WHERE name = 'event_dispatch'"
    assert site.ask(row) == 't 25 {"a": true, "b": true} {"a2": false}'
    assert site.ask("SELECT reason FROM audit_log WHERE action = 'flag.set' ORDER BY id DESC LIMIT 1") == (
        "first quarter"
    )
    page.get_by_text("Change event_dispatch").click()
    expect(form.get_by_label("Always off for these merchants")).to_have_value("a2")
    form.get_by_label("Always on for these merchants").fill("a2")
    form.get_by_label("Because", exact=True).fill("both?")
    form.get_by_role("button", name="Set event_dispatch", exact=True).click()
    expect(page.locator(".said.error")).to_contain_text("a2: it cannot be on and off")


@tries("/control/flags/{flag}/unset")
def unset_a_flag(page: Page, site: Site) -> None:
    if not site.ask("SELECT count(*) FROM flags"):
        set_a_flag(page, site)
    page.goto(f"{site.url}/console/control")
    page.get_by_text("Change event_dispatch").click()
    form = page.locator("#flag-event_dispatch")
    # The last form of the two: unset, the flag is on for everybody.
    form.get_by_label("Leads that were due before were called by another system").last.check()
    form.get_by_label("Back to the default, because").fill("everybody is on it")
    form.get_by_role("button", name="Unset").click()
    said(page)
    assert site.ask("SELECT count(*) FROM flags") == 0


@tries("/alarms/{alarm_id}/clear")
def clear_an_alarm(page: Page, site: Site) -> None:
    alarm = site.background.run(site.world.api.objects_of("a2"))["alarm_id"]
    page.goto(f"{site.url}/console/control")
    row = (
        page.get_by_role("row").filter(has_text="of-a2").filter(has=page.get_by_role("button", name="Clear"))
    )
    row.get_by_role("textbox").fill("looked at it")
    row.get_by_role("button", name="Clear").click()
    said(page)
    assert site.ask("SELECT cleared_at IS NOT NULL FROM alarms WHERE id = $1::uuid", alarm)


def make_campaign(site: Site, name: str) -> str:
    body = {"name": name, "merchant_id": "a1", "pool": "a1-pool"}
    made = site.background.run(site.world.api.admin.post("/api/v1/campaigns", body))
    return str(made.json()["id"])


def campaign_status(site: Site, campaign_id: str) -> str:
    return str(site.ask("SELECT status FROM campaigns WHERE id = $1::uuid", campaign_id))


@tries("/campaigns/make")
def make_a_campaign(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/console/campaigns")
    page.get_by_label("Name").fill("Renewals in May")
    page.get_by_label("Merchant (id)").fill("a1")
    page.get_by_role("button", name="Create a draft").click()
    expect(page.get_by_role("heading", name="Renewals in May")).to_be_visible()
    assert site.ask("SELECT status FROM campaigns WHERE name = 'Renewals in May'") == "DRAFT"


@tries("/campaigns/{campaign_id}/start")
def start_a_campaign(page: Page, site: Site) -> None:
    campaign_id = make_campaign(site, "to start")
    page.goto(f"{site.url}/console/campaigns")
    page.get_by_role("link", name="to start").click()
    page.get_by_role("button", name="Start").click()
    said(page)
    assert campaign_status(site, campaign_id) == "RUNNING"


@tries("/campaigns/{campaign_id}/pause")
def pause_a_campaign(page: Page, site: Site) -> None:
    campaign_id = make_campaign(site, "to pause")
    page.goto(f"{site.url}/console/campaigns/{campaign_id}")
    page.get_by_role("button", name="Start").click()
    page.get_by_label("Pause, because").fill("wrong prompt")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert campaign_status(site, campaign_id) == "PAUSED"


@tries("/campaigns/{campaign_id}/resume")
def resume_a_campaign(page: Page, site: Site) -> None:
    campaign_id = make_campaign(site, "to resume")
    for act in ("start", "pause"):
        site.background.run(site.world.api.admin.post(f"/api/v1/campaigns/{campaign_id}/{act}", {}))
    page.goto(f"{site.url}/console/campaigns/{campaign_id}")
    page.get_by_role("button", name="Resume").click()
    said(page)
    assert campaign_status(site, campaign_id) == "RUNNING"


@tries("/campaigns/{campaign_id}/stop")
def stop_a_campaign(page: Page, site: Site) -> None:
    campaign_id = make_campaign(site, "to stop")
    page.goto(f"{site.url}/console/campaigns/{campaign_id}")
    page.get_by_label("Stop for good, because").fill("sold out")
    page.get_by_role("button", name="Stop for good").click()
    said(page)
    assert campaign_status(site, campaign_id) in ("STOPPING", "STOPPED")


def reminder_status(site: Site, reminder_id: str) -> str:
    return str(site.ask("SELECT status FROM reminders WHERE id = $1::uuid", reminder_id))


def open_reminder(page: Page, site: Site) -> str:
    """One that rings every morning, for years."""
    body = {
        "merchant_id": "a1",
        "phone": "+14155550123",
        "timezone": "UTC",
        "starts_at": "2031-01-01T09:00",
        "rrule": "FREQ=DAILY",
        "pool": "a1-pool",
    }
    made = site.background.run(site.world.api.admin.post("/api/v1/reminders", body))
    reminder_id = str(made.json()["id"])
    page.goto(f"{site.url}/console/reminders")
    page.get_by_role("link", name=f"…{reminder_id[-8:]}").click()
    return reminder_id


@tries("/reminders/{reminder_id}/pause")
def pause_a_reminder(page: Page, site: Site) -> None:
    reminder_id = open_reminder(page, site)
    page.get_by_role("button", name="Pause").click()
    said(page)
    assert reminder_status(site, reminder_id) == "PAUSED"


@tries("/reminders/{reminder_id}/resume")
def resume_a_reminder(page: Page, site: Site) -> None:
    reminder_id = open_reminder(page, site)
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert reminder_status(site, reminder_id) == "ACTIVE"


@tries("/reminders/{reminder_id}/skip")
def skip_a_time(page: Page, site: Site) -> None:
    reminder_id = open_reminder(page, site)
    page.get_by_role("button", name="Skip 2031-01-02").click()
    said(page)
    skipped = site.ask(
        "SELECT wall_at::text FROM reminder_occurrences WHERE reminder_id = $1::uuid", reminder_id
    )
    assert skipped == "2031-01-02 09:00:00"


@tries("/reminders/{reminder_id}/ring-now")
def ring_now(page: Page, site: Site) -> None:
    reminder_id = open_reminder(page, site)
    page.get_by_role("button", name="Call the next occurrence now").click()
    said(page)
    assert site.ask(
        "SELECT count(lead_id) FROM reminder_occurrences WHERE reminder_id = $1::uuid", reminder_id
    )


@tries("/reminders/{reminder_id}/cancel")
def cancel_a_reminder(page: Page, site: Site) -> None:
    reminder_id = open_reminder(page, site)
    page.get_by_role("button", name="Cancel for good").click()
    said(page)
    assert reminder_status(site, reminder_id) == "ENDED"


def pod_is_draining(site: Site, name: str) -> bool:
    pod = site.background.run(site.world.api.admin.get(f"/api/v1/pod/{name}"))
    return bool(pod.json()["is_draining"])


@tries("/pods/{name}/drain")
def drain_a_pod(page: Page, site: Site) -> None:
    site.background.run(park(site.world.api, "agent-7", "CA-7"))
    page.goto(f"{site.url}/console/pods?call=CA-7")
    page.get_by_role("status").get_by_role("link").click()
    expect(page.get_by_text("CA-7")).to_be_visible()
    page.get_by_role("button", name="Drain").click()
    said(page)
    assert pod_is_draining(site, "agent-7")


@tries("/pods/{name}/undrain")
def undrain_a_pod(page: Page, site: Site) -> None:
    site.background.run(park(site.world.api, "agent-8"))
    page.goto(f"{site.url}/console/pods/agent-8")
    page.get_by_role("button", name="Drain").click()
    page.get_by_role("link", name="agent-8").first.click() if page.url.endswith("/pods") else None
    page.get_by_role("button", name="End the drain").click()
    expect(page.get_by_role("button", name="Drain")).to_be_visible()
    assert not pod_is_draining(site, "agent-8")


def bury(site: Site, key: str) -> None:
    """A mailbox that failed too often, with one event."""
    site.ask(
        "INSERT INTO mailboxes (kind, key, processing_status, appended, failures, last_error)"
        " VALUES ('issue', $1, 'dead', 1, 5, 'no such field')",
        key,
    )
    site.ask(
        "INSERT INTO mailbox_events (mailbox_id, seq, dedupe_key, type, payload)"
        " SELECT id, 1, 'one', 'comment', '{}' FROM mailboxes WHERE key = $1",
        key,
    )


def mailbox_status(site: Site, key: str) -> str:
    return str(site.ask("SELECT processing_status FROM mailboxes WHERE key = $1", key))


@tries("/mailboxes/{kind}/replay")
def replay_a_kind(page: Page, site: Site) -> None:
    bury(site, "of-a-kind")
    page.goto(f"{site.url}/console/mailboxes")
    expect(page.get_by_text("no such field").first).to_be_visible()
    page.get_by_label("Why replay issue").fill("mended")
    page.get_by_role("button", name="Replay all of issue").click()
    said(page)
    assert mailbox_status(site, "of-a-kind") == "queued"


@tries("/mailboxes/{kind}/{key:path}/replay")
def replay_a_mailbox(page: Page, site: Site) -> None:
    bury(site, "acme/site#12")
    page.goto(f"{site.url}/console/mailboxes/issue?status=dead")
    page.get_by_role("link", name="acme/site#12").click()
    page.get_by_label("Why replay").fill("mended")
    page.get_by_role("button", name="Replay this mailbox").click()
    said(page)
    assert mailbox_status(site, "acme/site#12") == "queued"


@tries("/mailboxes/{kind}/{key:path}/set-aside")
def set_an_event_aside(page: Page, site: Site) -> None:
    bury(site, "set/aside")
    page.goto(f"{site.url}/console/mailboxes/issue/set%2Faside")
    row = page.get_by_role("row", name="comment")
    row.get_by_role("textbox").fill("nobody can read it")
    row.get_by_role("button", name="Set aside").click()
    said(page)
    assert site.ask("SELECT error FROM mailbox_events WHERE error LIKE 'nobody%'")


@pytest.mark.parametrize("path", ACTIONS)
def test_every_action_of_the_console_has_its_effect(page: Page, site: Site, path: str) -> None:
    TRIES[path](page, site)


def test_a_campaign_page_uploads_leads_and_downloads_results(page: Page, site: Site, tmp_path: Path) -> None:
    campaign_id = make_campaign(site, "from a file")
    people = tmp_path / "people.csv"
    people.write_text("Mobile,Full name\n+14155550140,Ada\n+14155550141,Bob\nnobody,Eve\n")
    page.goto(f"{site.url}/console/campaigns/{campaign_id}")
    page.get_by_label("A file").set_input_files(people)
    page.get_by_label("The column of the phone").fill("Mobile")
    page.get_by_role("button", name="Upload").click()
    report = page.locator("[data-report]")
    expect(report.get_by_role("status")).to_contain_text("2 new leads")
    expect(report.get_by_role("row", name="3")).to_contain_text("refused")
    assert site.ask("SELECT count(*) FROM leads WHERE campaign_id = $1::uuid", campaign_id) == 2
    with page.expect_download() as download:
        page.get_by_role("link", name="Results as CSV").click()
    assert "+14155550140" in Path(download.value.path()).read_text()


def test_the_leads_page_uploads_a_file_and_reports_refused_rows(
    page: Page, site: Site, tmp_path: Path
) -> None:
    people = tmp_path / "people.csv"
    people.write_text("request_id,merchant_id,phone\nup-1,a1,+14155550150\nup-2,no-such,+14155550151\n")
    page.goto(f"{site.url}/console/leads")
    page.get_by_text("Upload leads from a file").click()
    page.get_by_label("A file").set_input_files(people)
    page.get_by_role("button", name="Upload").click()
    report = page.locator("[data-report]")
    expect(report.get_by_role("status")).to_contain_text("1 new leads")
    expect(report.get_by_role("row", name="up-2")).to_contain_text("refused")
    assert site.ask("SELECT phone FROM leads WHERE request_id = 'up-1'") == "+14155550150"
    people.rename(tmp_path / "people.txt")
    page.get_by_label("A file").set_input_files(tmp_path / "people.txt")
    page.get_by_role("button", name="Upload").click()
    expect(report.get_by_role("alert")).to_contain_text(".csv")


def test_a_job_page_downloads_its_export(page: Page, site: Site) -> None:
    job_id = site.background.run(site.world.api.objects_of("b1"))["job_id"]
    page.goto(f"{site.url}/console/jobs/{job_id}")
    with page.expect_download() as download:
        page.get_by_role("link", name="The file").click()
    assert Path(download.value.path()).read_text().startswith("id")


def test_a_refused_action_shows_an_alert_and_changes_nothing(page: Page, site: Site) -> None:
    page.goto(f"{site.url}/console/control")
    page.get_by_label("Which").fill("no-such-merchant")
    page.get_by_role("textbox", name="Reason", exact=True).fill("complaints")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("no such")
    assert site.ask("SELECT count(*) FROM controls WHERE subject = 'no-such-merchant'") == 0


def test_signing_out_ends_the_session(page: Page, site: Site) -> None:
    page.locator(".me summary").click()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_text("You are signed out.")).to_be_visible()
    page.goto(f"{site.url}/console")
    expect(page.get_by_label("API key")).to_be_visible()

"""Every page and every action of the console, by address. A test opens each page and tries each action."""

from collections.abc import Mapping

from trunkline.console import (
    audit,
    campaigns,
    control,
    files,
    flags,
    lead,
    leads,
    numbers,
    overview,
    pods,
    queues,
    reminders,
    resources,
)
from trunkline.console.page_request import Action, Download, Page, Upload

PAGES: Mapping[str, Page] = {
    "": overview.show,
    "/leads": leads.show,
    "/leads/{lead_id}": lead.show,
    "/campaigns": campaigns.show,
    "/campaigns/{campaign_id}": campaigns.show_one,
    "/reminders": reminders.show,
    "/reminders/{reminder_id}": reminders.show_one,
    "/numbers": numbers.show,
    "/numbers/{number_id}": numbers.show_one,
    "/pods": pods.show,
    "/pods/{name}": pods.show_one,
    "/queues": queues.show,
    "/mailboxes": queues.show_mailboxes,
    "/mailboxes/{kind}": queues.show_kind,
    "/mailboxes/{kind}/{key:path}": queues.show_mailbox,
    "/jobs": queues.show_jobs,
    "/jobs/{job_id}": queues.show_job,
    "/control": control.show,
    "/audit": audit.show,
    "/resources": resources.page_of("merchants"),
    **{f"/resources/{name}": resources.page_of(name) for name in resources.LISTS},
}

ACTIONS: Mapping[str, Action] = {
    "/leads/reopen": leads.reopen,
    "/leads/{lead_id}/call-now": lead.call_now,
    "/leads/{lead_id}/reopen": lead.reopen,
    "/leads/{lead_id}/change": lead.change,
    "/leads/{lead_id}/abort": lead.abort,
    "/leads/{lead_id}/never-call": lead.never_call,
    "/campaigns/make": campaigns.make,
    "/campaigns/{campaign_id}/start": campaigns.start,
    "/campaigns/{campaign_id}/pause": campaigns.pause,
    "/campaigns/{campaign_id}/resume": campaigns.resume,
    "/campaigns/{campaign_id}/stop": campaigns.stop,
    "/reminders/{reminder_id}/pause": reminders.pause,
    "/reminders/{reminder_id}/resume": reminders.resume,
    "/reminders/{reminder_id}/skip": reminders.skip,
    "/reminders/{reminder_id}/ring-now": reminders.ring_now,
    "/reminders/{reminder_id}/cancel": reminders.cancel,
    "/numbers/{number_id}/status": numbers.set_status,
    "/pods/{name}/drain": pods.drain,
    "/pods/{name}/undrain": pods.undrain,
    "/mailboxes/{kind}/replay": queues.replay_kind,
    "/mailboxes/{kind}/{key:path}/replay": queues.replay_mailbox,
    "/mailboxes/{kind}/{key:path}/set-aside": queues.set_aside,
    "/jobs/types/{job_type}/pause": queues.pause_type,
    "/jobs/types/{job_type}/resume": queues.resume_type,
    "/jobs/replay": queues.replay_dead,
    "/jobs/{job_id}/retry": queues.retry_job,
    "/jobs/{job_id}/cancel": queues.cancel_job,
    "/control/stop": control.stop,
    "/control/resume": control.resume,
    "/control/flags/{flag}": flags.set_flag,
    "/control/flags/{flag}/unset": flags.unset,
    "/alarms/{alarm_id}/clear": control.clear_alarm,
}

UPLOADS: Mapping[str, Upload] = {
    "/upload/leads": files.taking("/leads/bulk"),
    "/upload/campaigns/{campaign_id}": files.taking("/campaigns/{campaign_id}/leads"),
}

DOWNLOADS: Mapping[str, Download] = {
    "/campaigns/{campaign_id}/results.csv": files.giving("/campaigns/{campaign_id}/results"),
    "/jobs/{job_id}/file": files.giving("/jobs/{job_id}/file"),
}

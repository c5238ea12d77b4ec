"""Tells ALARM_WEBHOOK_URL of alarms, as a job: enqueued in the transaction that marks an alarm as told, and tried again
when it fails.

The URL is the operator's own, so private addresses are allowed, and it is read when the job runs: it is as good as a
password and stays out of the database.
"""

from typing import Any

import msgspec

from trunkline.control.announcements import Announcement
from trunkline.jobs.outbox import Outbox
from trunkline.jobs.outcomes import Cancel, Done, Failed, Outcome, Policy
from trunkline.jobs.platform.outgoing import FAILURES, Outgoing
from trunkline.jobs.registry import JobType
from trunkline.jobs.run import Run
from trunkline.store.database import Connection


class AlarmWebhook(msgspec.Struct, frozen=True):
    message_id: str
    body: dict[str, Any]


ANNOUNCE_ALARM: JobType[AlarmWebhook] = JobType(
    "announce_alarm",
    AlarmWebhook,
    # Over within three hours: who hears of an alarm later than that has found out by other means.
    Policy(backoff_s=(5.0, 30.0, 300.0, 1800.0, 7200.0), priority=5, timeout_s=30.0),
)


class AlarmAnnouncer:
    """For the loop that judges alarms."""

    def __init__(self, outbox: Outbox):
        self._outbox = outbox

    async def announce(self, tx: Connection, announcement: Announcement) -> None:
        await self._outbox.enqueue(
            tx,
            ANNOUNCE_ALARM,
            AlarmWebhook(announcement.id, announcement.body),
            unique_key=announcement.id,
            concurrency_key=str(announcement.alarm_id),
        )


class AlarmDelivery:
    """The handler."""

    def __init__(self, url: str | None, outgoing: Outgoing):
        self._url = url
        self._outgoing = outgoing

    async def run(self, webhook: AlarmWebhook, run: Run) -> Outcome:
        if self._url is None:
            return Cancel("ALARM_WEBHOOK_URL is not set")
        headers = {"Content-Type": "application/json", "webhook-id": webhook.message_id}
        body = msgspec.json.encode(webhook.body)
        try:
            async with self._outgoing.request("POST", self._url, body=body, headers=headers) as answer:
                if 200 <= answer.status < 300:
                    return Done({"status": answer.status})
                return Failed(f"http_{answer.status}", "The webhook of alarms did not accept it")
        except FAILURES as error:
            return Failed("not_reached", f"The webhook of alarms: {type(error).__name__}")

"""Sends alarms to ALARM_WEBHOOK_URL, from any process, also during an outage of Postgres.

The URL is the operator's own, so private addresses are allowed. It is as sensitive as a password and appears in neither
database nor log.
"""

import msgspec

from trunkline.control.announcements import Announcement
from trunkline.http.outgoing import FAILURES, Outgoing
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# A receiver that takes longer is retried later: the next alarm must not wait for it.
TIMEOUT_S = 8.0


class AlarmWebhook:
    def __init__(self, url: str, outgoing: Outgoing | None = None):
        self._url = url
        self._outgoing = outgoing or Outgoing(allow_insecure=True)

    async def send(self, announcement: Announcement) -> bool:
        """Whether the receiver accepted it."""
        headers = {"Content-Type": "application/json", "webhook-id": announcement.id}
        body = msgspec.json.encode(announcement.body)
        error = ""
        try:
            async with self._outgoing.request(
                "POST", self._url, body=body, headers=headers, total_timeout_s=TIMEOUT_S
            ) as answer:
                if 200 <= answer.status < 300:
                    return True
                error = f"http_{answer.status}"
        except FAILURES as failure:
            error = type(failure).__name__
        log.warning("alarm.not_notified", announcement=announcement.id, error=error)
        return False

    async def close(self) -> None:
        await self._outgoing.close()

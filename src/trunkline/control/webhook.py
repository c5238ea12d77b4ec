"""The messages to ALARM_WEBHOOK_URL: an alarm was raised, is ongoing, or was cleared. Any process sends them, also
during an outage of Postgres.

The URL is the operator's own, so private addresses are allowed. It is as sensitive as a password and appears in neither
database nor log.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from trunkline.control.alarms import DEFINITIONS
from trunkline.http.outgoing import FAILURES, Outgoing
from trunkline.store.alarms import Alarm
from trunkline.telemetry import get_logger

log = get_logger(__name__)

# A receiver that takes longer is retried later: the next alarm must not wait for it.
TIMEOUT_S = 8.0

Word: TypeAlias = Literal["alarm.raised", "alarm.ongoing", "alarm.cleared"]


@dataclass(frozen=True, slots=True)
class Announcement:
    """`id` is the same however often it is sent, so that a receiver recognises a repeat."""

    id: str
    type: Word
    alarm_id: UUID
    body: dict[str, Any]


def announcements(alarm: Alarm) -> Iterator[Announcement]:
    """In order; an alarm that was raised and cleared between two runs yields both messages."""
    if alarm.raise_told_at is None:
        yield announcement("alarm.raised", alarm)
    if alarm.cleared_at is not None:
        yield announcement("alarm.cleared", alarm)
    elif alarm.raise_told_at is not None:
        yield announcement("alarm.ongoing", alarm)


def announcement(word: Word, alarm: Alarm) -> Announcement:
    definition = DEFINITIONS.get(alarm.name)
    cleared_at = alarm.cleared_at if word == "alarm.cleared" else None
    body = {
        "type": word,
        "timestamp": (cleared_at or alarm.raised_at).isoformat(),
        "data": {
            "id": str(alarm.id),
            "name": alarm.name,
            "subject": alarm.subject,
            "severity": alarm.severity,
            "meaning": definition.meaning if definition else "",
            "action": definition.action if definition else "",
            "detail": dict(alarm.detail),
            "raised_at": alarm.raised_at.isoformat(),
            "cleared_at": cleared_at.isoformat() if cleared_at else None,
        },
    }
    # An ongoing alarm is announced repeatedly, each time under another id.
    after = f":{alarm.notified_at.isoformat()}" if word == "alarm.ongoing" and alarm.notified_at else ""
    return Announcement(f"{word}:{alarm.id}{after}", word, alarm.id, body)


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

"""What the outside is told of an alarm: that it was raised, that it was cleared."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from trunkline.control.alarms import DEFINITIONS
from trunkline.store.alarms import Alarm


@dataclass(frozen=True, slots=True)
class Announcement:
    """`id` is the same however often it is sent, so a receiver can tell a repetition."""

    id: str
    type: Literal["alarm.raised", "alarm.cleared"]
    alarm_id: UUID
    body: dict[str, Any]


def announcements(untold: Iterable[Alarm]) -> Iterator[Announcement]:
    """In the order of the alarms; one that was raised and cleared between two looks is both."""
    for alarm in untold:
        if alarm.raise_told_at is None:
            yield _announcement("alarm.raised", alarm, alarm.raised_at)
        if alarm.cleared_at is not None:
            yield _announcement("alarm.cleared", alarm, alarm.cleared_at)


def _announcement(word: Literal["alarm.raised", "alarm.cleared"], alarm: Alarm, at: datetime) -> Announcement:
    definition = DEFINITIONS.get(alarm.name)
    body = {
        "type": word,
        "timestamp": at.isoformat(),
        "data": {
            "id": str(alarm.id),
            "name": alarm.name,
            "subject": alarm.subject,
            "severity": alarm.severity,
            "meaning": definition.meaning if definition else "",
            "action": definition.action if definition else "",
            "detail": dict(alarm.detail),
            "raised_at": alarm.raised_at.isoformat(),
            "cleared_at": alarm.cleared_at.isoformat()
            if word == "alarm.cleared" and alarm.cleared_at
            else None,
        },
    }
    return Announcement(f"{word}:{alarm.id}", word, alarm.id, body)

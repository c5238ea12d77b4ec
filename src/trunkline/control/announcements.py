"""The messages to the operators' webhook: an alarm was raised, is ongoing, or was cleared."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import UUID

from trunkline.control.alarms import DEFINITIONS
from trunkline.store.alarms import Alarm

Word: TypeAlias = Literal["alarm.raised", "alarm.ongoing", "alarm.cleared"]


@dataclass(frozen=True, slots=True)
class Announcement:
    """`id` is the same however often it is sent, so that a receiver recognises a repeat."""

    id: str
    type: Word
    alarm_id: UUID
    body: dict[str, Any]


def announcements(alarms: Iterable[Alarm]) -> Iterator[Announcement]:
    """In the order of the alarms; one that was raised and cleared between two runs yields both messages."""
    for alarm in alarms:
        if alarm.raise_told_at is None:
            yield announcement("alarm.raised", alarm)
        if alarm.cleared_at is not None:
            yield announcement("alarm.cleared", alarm)
        elif alarm.raise_told_at is not None:
            yield announcement("alarm.ongoing", alarm)


def announcement(word: Word, alarm: Alarm) -> Announcement:
    definition = DEFINITIONS.get(alarm.name)
    is_over = word == "alarm.cleared" and alarm.cleared_at is not None
    at = alarm.cleared_at if is_over and alarm.cleared_at else alarm.raised_at
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
            "cleared_at": alarm.cleared_at.isoformat() if is_over and alarm.cleared_at else None,
        },
    }
    # An ongoing alarm is announced repeatedly, each time under another id.
    after = f":{alarm.notified_at.isoformat()}" if word == "alarm.ongoing" and alarm.notified_at else ""
    return Announcement(f"{word}:{alarm.id}{after}", word, alarm.id, body)

"""Where the recordings of calls are, as their carriers tell it: in a webhook of its own, or with a call's end."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from trunkline.store.mailboxes import Event

# Twilio and Exotel, Plivo, Vapi.
_NAMES = ("RecordingUrl", "RecordUrl", "recordingUrl")
REF_MAX = 2000


def found_in(batch: Mapping[str, Sequence[Event]], attempt_ids: Sequence[UUID]) -> list[tuple[UUID, str]]:
    """Each once, of these attempts alone."""
    return list(
        dict.fromkeys(
            (each, ref) for each in attempt_ids for event in batch[str(each)] for ref in _refs(event)
        )
    )


def _refs(event: Event) -> Iterator[str]:
    payload: Any = event.payload
    raw = payload.get("raw") if isinstance(payload, dict) else None
    if not isinstance(raw, dict):
        return
    for ref in map(raw.get, _NAMES):
        if isinstance(ref, str) and 0 < len(ref) <= REF_MAX and ref.isprintable():
            yield ref

"""The addresses of call recordings, as carriers report them: in a webhook of their own, or with a call's end."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

from trunkline.jobs.platform.enrichment import CallSource, Wanted
from trunkline.store.attempts import Attempt
from trunkline.store.mailboxes import Event

# Twilio and Exotel, Plivo, Vapi.
_NAMES = ("RecordingUrl", "RecordUrl", "recordingUrl")
# Twilio also reports recordings that cannot be fetched: not yet, never, or no longer.
_MISSING = frozenset({"in-progress", "processing", "absent", "failed", "deleted"})
REF_MAX = 2000


def found_in(batch: Mapping[str, Sequence[Event]], attempt_ids: Sequence[UUID]) -> list[tuple[UUID, str]]:
    """Each once, of these attempts alone."""
    return list(
        dict.fromkeys(
            (each, ref) for each in attempt_ids for event in batch[str(each)] for ref in _refs(event)
        )
    )


def to_fetch(found: Iterable[tuple[UUID, str]], locked: Mapping[UUID, Attempt]) -> list[Wanted]:
    """A recording is an item of its own, named by its address: reported twice, it is fetched once, whether or not the
    call's agent requested an enrichment."""
    return [
        Wanted(
            f"{attempt_id}.{sha256(ref.encode()).hexdigest()[:16]}",
            CallSource(
                recording_url=ref, carrier=locked[attempt_id].carrier, account=locked[attempt_id].account
            ),
            locked[attempt_id].tenant,
            attempt_id,
        )
        for attempt_id, ref in found
    ]


def _refs(event: Event) -> Iterator[str]:
    payload: Any = event.payload
    raw = payload.get("raw") if isinstance(payload, dict) else None
    if not isinstance(raw, dict) or raw.get("RecordingStatus") in _MISSING:
        return
    for ref in map(raw.get, _NAMES):
        if isinstance(ref, str) and 0 < len(ref) <= REF_MAX and ref.isprintable():
            yield ref

"""The format of wakeups: the lanes that have new jobs, and the time from which to look. Never the jobs themselves.

A wakeup is a hint. One that is lost, duplicated, or of another version costs one poll of the outbox, and no more.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from trunkline.store.jobs import BEGINNING, Lane

CHANNEL = "trunkline_jobs"
# Postgres accepts up to 8,000 bytes. A lane takes about 40.
PAYLOAD_MAX = 7_500
# A running job was cancelled: every worker checks its own jobs.
CANCELLED = "!"

Places = dict[Lane, datetime]


def merge(into: Places, places: Iterable[tuple[Lane, datetime]]) -> None:
    for lane, run_at in places:
        known = into.get(lane)
        into[lane] = run_at if known is None or run_at < known else known


def encode(places: Mapping[Lane, datetime]) -> Iterator[str]:
    """As few payloads as possible."""
    line: list[str] = []
    length = 0
    for lane, run_at in places.items():
        word = f"{lane.job_type} {lane.priority} {int(lane.keyed)} {_microseconds(run_at)}"
        if length + len(word) > PAYLOAD_MAX:
            yield ",".join(line)
            line, length = [], 0
        line.append(word)
        length += len(word) + 1
    if line:
        yield ",".join(line)


def decode(payload: str) -> Places | None:
    """None for an unreadable or empty payload: poll all lanes."""
    places: Places = {}
    try:
        for word in payload.split(","):
            job_type, priority, keyed, run_at = word.split(" ")
            lane = Lane(job_type, int(priority), keyed == "1")
            places[lane] = datetime.fromtimestamp(int(run_at) / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return places


def _microseconds(moment: datetime) -> int:
    """Rounded down, so that the position is never behind the job."""
    return int((moment - BEGINNING).total_seconds() * 1_000_000) - 1

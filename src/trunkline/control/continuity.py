"""Was Postgres restored to an earlier moment? Then calls may be live that it has forgotten: the kill switch goes on.

The database carries a name (`installation`) and a number (`beat`) that the leader moves on every second. Whoever has
seen a number is a witness of it: every running process by itself, and Valkey. A database that stands before what a
witness has seen has lost commits, by whatever road: a backup, a snapshot of a disk, a promoted replica that lagged.

When nobody remembers (Valkey was emptied while no process ran), the database's own record counts: a last beat from
within five minutes is taken as a restart, an older one as a database that may come from a backup. That is also how a
copy of an installation that is started elsewhere stays silent. `RESTORE_GUARD=witness` trusts it instead. A database
without leads is trusted too: there is nobody in it to ring twice.

Not seen are losses of less than one beat, a second; and, where nobody remembers, those of less than five minutes.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from trunkline.store.controls import Poll

UNWITNESSED_AFTER_S = 300.0
# How long a starting process waits for a Valkey that does not answer before it counts as one that remembers nothing.
WITNESS_WAIT_S = 30.0

Guard = Literal["strict", "witness"]
_WHAT_TO_DO = "Run `trunkline restore-check` before dialling goes on."


@dataclass(frozen=True, slots=True)
class ContinuityMark:
    """How far a database had come when a witness looked."""

    installation: UUID
    beat: int


@dataclass(frozen=True, slots=True)
class Steady:
    """The database is where it is known to be, or further."""

    mark: ContinuityMark


@dataclass(frozen=True, slots=True)
class WentBack:
    """It stands before what was seen of it. `beyond` is the furthest that anybody remembers, `backup_at` the last
    moment that the database knows of."""

    found: ContinuityMark
    beyond: int
    backup_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Nobody has ever started here."""


ContinuityVerdict = Steady | WentBack | Unnamed


def judge(
    poll: Poll,
    own: ContinuityMark | None,
    witness: ContinuityMark | None,
    guard: Guard,
    *,
    is_empty: bool = False,
) -> ContinuityVerdict:
    """`own` is what this process has seen, `witness` what Valkey says, of whichever database that was."""
    if poll.installation is None:
        return Unnamed()
    found = ContinuityMark(poll.installation, poll.beat)
    if own is not None and own.installation != found.installation:
        return WentBack(
            found,
            found.beat,
            poll.beat_at,
            f"Postgres was replaced by another database while this process ran. {_WHAT_TO_DO}",
        )
    seen = [mark.beat for mark in (own, witness) if mark and mark.installation == found.installation]
    if seen and found.beat < max(seen):
        return WentBack(found, max(seen), poll.beat_at, _lost(poll.beat_at, max(seen) - found.beat))
    if not seen and guard == "strict" and not is_empty and _silent_s(poll) > UNWITNESSED_AFTER_S:
        return WentBack(found, found.beat, poll.beat_at, _unwitnessed(poll.beat_at))
    return Steady(found)


def _silent_s(poll: Poll) -> float:
    return (poll.now - poll.beat_at).total_seconds()


def _lost(beat_at: datetime, beats: int) -> str:
    return (
        f"Postgres was restored to an earlier moment, {beat_at:%Y-%m-%d %H:%M:%S} UTC: about {beats} s of commits are "
        f"lost, and calls that were placed meanwhile are unknown. {_WHAT_TO_DO}"
    )


def _unwitnessed(beat_at: datetime) -> str:
    return (
        f"Postgres was last used at {beat_at:%Y-%m-%d %H:%M:%S} UTC and nobody remembers whether that was its last "
        f"moment: it may come from a backup, or be a copy. {_WHAT_TO_DO}"
    )

"""Continuity of the database: detects that Postgres was restored to an earlier state. Pure.

Then calls may be live that it has no rows of: the guardian turns the kill switch on.

The database has a name (`installation`) and a number (`beat`) that the leader increments every second. Every running
process and Valkey are witnesses: they store the last beat that they saw. If the database's beat is behind that of a
witness, it has lost commits, by a backup, a snapshot of a disk, or a promoted replica that lagged.

Without a witness (Valkey was emptied while no process ran) the database's own record counts: a last beat within five
minutes counts as a restart, an older one as a database that may come from a backup. So a copy of an installation that
is started elsewhere dials nothing. `RESTORE_GUARD=witness` trusts it instead. A database without leads is trusted too:
it has no lead that could be called twice.

Not detected are losses of less than one beat, a second; and, without a witness, those of less than five minutes.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from trunkline.store.controls import Poll

UNWITNESSED_AFTER_S = 300.0
# How long a starting process waits for Valkey to answer before it goes on without this witness.
WITNESS_WAIT_S = 30.0

Guard = Literal["strict", "witness"]
_WHAT_TO_DO = "Run `trunkline restore-check` before dialling goes on."


@dataclass(frozen=True, slots=True)
class ContinuityMark:
    """A database and the last beat that a witness saw of it."""

    installation: UUID
    beat: int


@dataclass(frozen=True, slots=True)
class Steady:
    """The database is at the beat of every witness, or beyond."""

    mark: ContinuityMark


@dataclass(frozen=True, slots=True)
class WentBack:
    """Its beat is behind that of a witness. `beyond` is the highest beat of any witness, `backup_at` the time of the
    database's own last beat."""

    found: ContinuityMark
    beyond: int
    backup_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Unnamed:
    """No platform has ever started on this database."""


ContinuityVerdict = Steady | WentBack | Unnamed


def judge(
    poll: Poll,
    own: ContinuityMark | None,
    witness: ContinuityMark | None,
    guard: Guard,
    *,
    is_empty: bool = False,
) -> ContinuityVerdict:
    """`own` is the last mark of this process, `witness` that of Valkey, of whichever database it was."""
    if poll.installation is None:
        return Unnamed()
    current = ContinuityMark(poll.installation, poll.beat)
    if own is not None and own.installation != current.installation:
        return WentBack(
            current,
            current.beat,
            poll.beat_at,
            f"Postgres was replaced by another database while this process ran. {_WHAT_TO_DO}",
        )
    seen = [mark.beat for mark in (own, witness) if mark and mark.installation == current.installation]
    if seen and current.beat < max(seen):
        return WentBack(current, max(seen), poll.beat_at, _lost(poll.beat_at, max(seen) - current.beat))
    if not seen and guard == "strict" and not is_empty and _silent_s(poll) > UNWITNESSED_AFTER_S:
        return WentBack(current, current.beat, poll.beat_at, _unwitnessed(poll.beat_at))
    return Steady(current)


def _silent_s(poll: Poll) -> float:
    return (poll.now - poll.beat_at).total_seconds()


def _lost(beat_at: datetime, beats: int) -> str:
    return (
        f"Postgres was restored to an earlier moment, {beat_at:%Y-%m-%d %H:%M:%S} UTC: about {beats} s of commits are "
        f"lost, and calls that were placed meanwhile are unknown. {_WHAT_TO_DO}"
    )


def _unwitnessed(beat_at: datetime) -> str:
    return (
        f"Postgres was last used at {beat_at:%Y-%m-%d %H:%M:%S} UTC and no witness knows whether that was its last "
        f"moment: it may come from a backup, or be a copy. {_WHAT_TO_DO}"
    )

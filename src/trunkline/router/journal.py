"""What the router remembers beyond Valkey: allocations as they begin and end, and the tier of each pod.

Nothing waits for it: an allocation is answered from Valkey, and noted here on the way. A note that is lost with its
process is found again from the pod's own heartbeat.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Begun:
    allocation_id: str
    call_sid: str
    pod: str
    source_pool: str
    merchant_id: str
    allocated_at_s: int


@dataclass(frozen=True, slots=True)
class Over:
    """`is_orphaned`: the pod is lost, the call may live on and have another one."""

    allocation_id: str
    call_sid: str
    pod: str
    is_orphaned: bool = False


class Journal(Protocol):
    def begun(self, note: Begun) -> None: ...

    def over(self, note: Over) -> None: ...

    def tier(self, pod: str, tier: str, *, is_new: bool = False) -> None:
        """The pod is in this tier now. `is_new`: it has just come, and is noted though it may be known: a leader that
        missed it until now may be removing what is written."""
        ...

    def learn(self, pod: str, tier: str) -> None:
        """Postgres has this tier of the pod already, '' for none."""
        ...

    async def tier_of(self, pod: str, *, afresh: bool = False) -> str:
        """The tier that the pod had, '' if that is not known or cannot be read now. `afresh`: as it is written now,
        not as this process remembers it."""
        ...


class NoJournal:
    """A router without a memory of its own."""

    def begun(self, note: Begun) -> None: ...

    def over(self, note: Over) -> None: ...

    def tier(self, pod: str, tier: str, *, is_new: bool = False) -> None: ...

    def learn(self, pod: str, tier: str) -> None: ...

    async def tier_of(self, pod: str, *, afresh: bool = False) -> str:
        return ""

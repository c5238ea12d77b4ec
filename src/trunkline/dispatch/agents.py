"""The agent of a call: no call is dialled unless an agent is kept for it, as a channel is.

Whoever proposes slots (`SlotSource`) may be wrong; the intent keeps a slot under a unique index, and a call whose slot
did not go in is not dialled. Carriers that run the agent themselves need none, and neither do leads whose agents the
operator says are elsewhere.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from trunkline.model import AgentRoom, Grant, Slot
from trunkline.value import Value


class AgentRule(Value, frozen=True):
    """Which calls need an agent of ours. `are_elsewhere`: none does, the platform's operator says."""

    are_elsewhere: bool = True
    carriers_without_streams: frozenset[str] = frozenset()

    @property
    def are_ours(self) -> bool:
        return not self.are_elsewhere

    def needs_agent(self, carrier: str, *, are_elsewhere: bool) -> bool:
        return not (self.are_elsewhere or are_elsewhere or carrier in self.carriers_without_streams)


AGENTS_ELSEWHERE = AgentRule()


class SlotSource(Protocol):
    async def room(self) -> AgentRoom | None:
        """None: match without asking for agents, the intent will tell."""
        ...

    async def propose(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        """Slots for these grants, by attempt, as far as there are any."""
        ...

    async def give_back(self, attempt_ids: Collection[UUID]) -> None:
        """Proposals of which nothing came."""
        ...

    async def conflicted(self, slots: Collection[Slot]) -> None:
        """Postgres says that these are somebody else's, or gone: what proposed them is behind."""
        ...


class NoAgentsNeeded:
    """The source of an installation whose agents are elsewhere."""

    async def room(self) -> AgentRoom | None:
        return None

    async def propose(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        return {}

    async def give_back(self, attempt_ids: Collection[UUID]) -> None:
        return

    async def conflicted(self, slots: Collection[Slot]) -> None:
        return

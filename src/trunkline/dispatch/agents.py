"""The agent of a call: a call is dialled only if an agent is reserved for it, as a channel is.

A `SlotSource` proposes slots and may be wrong; the intent reserves a slot under a unique index, and a call whose
reservation was not inserted is not dialled. Carriers that run the agent themselves need none, and neither do leads of
tenants with external agents.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from trunkline.model import FreeSlots, Grant, Slot
from trunkline.value import Value


class AgentRule(Value, frozen=True):
    """Which calls need an agent of ours. `are_elsewhere`: none does, as the operator has configured."""

    are_elsewhere: bool = True
    carriers_without_streams: frozenset[str] = frozenset()

    @property
    def are_ours(self) -> bool:
        return not self.are_elsewhere

    def needs_agent(self, carrier: str, *, are_elsewhere: bool) -> bool:
        return not (self.are_elsewhere or are_elsewhere or carrier in self.carriers_without_streams)


AGENTS_ELSEWHERE = AgentRule()


class SlotSource(Protocol):
    async def free_slots(self) -> FreeSlots | None:
        """None: match without a bound on agents; the intent decides."""
        ...

    async def propose(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        """Slots for these grants, by attempt, as far as there are any."""
        ...

    async def give_back(self, attempt_ids: Collection[UUID]) -> None:
        """Proposals that no committed call uses."""
        ...

    async def conflicted(self, slots: Collection[Slot]) -> None:
        """Postgres has given these slots to other calls, or their pods are gone: the projection lags behind."""
        ...


class NoAgentsNeeded:
    """For an installation whose agents are all external."""

    async def free_slots(self) -> FreeSlots | None:
        return None

    async def propose(self, grants: Sequence[Grant]) -> Mapping[UUID, Slot]:
        return {}

    async def give_back(self, attempt_ids: Collection[UUID]) -> None:
        return

    async def conflicted(self, slots: Collection[Slot]) -> None:
        return

"""Connects an answered call with an agent: the one reserved with the dial, the one that its URL names, or another.

reservation (Postgres) ─ silent ─► the pod of the answer URL ─ none, or too old ─► allocate, as for any other call
     │ none, or lost
     └───────────────────────────────────────────────────────────────────────► allocate
"""

from uuid import UUID

from trunkline.clock import Clock
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocator import (
    Allocated,
    Allocator,
    EngineSilent,
    GivenUp,
    MustHangUp,
    NoneFree,
    PodWait,
)
from trunkline.router.resumption import Resumer
from trunkline.store import attempts
from trunkline.store.attempts import CallOwner
from trunkline.store.database import Database
from trunkline.telephony.carrier import ReservedAgent
from trunkline.value import Value


class CallToConnect(Value, frozen=True):
    """A call that needs an agent. `is_dialled`: outbound, so a slot may be reserved for it; `agent` is the one that its
    URL names. `over_turn`: the turn of its stream that ended, if it had one."""

    call_id: str
    attempt_id: UUID
    is_dialled: bool
    merchant_id: str = ""
    agent: ReservedAgent | None = None
    over_turn: int | None = None


class ExternalAgents(Value, frozen=True):
    """The call's agents are external, and none of the platform's is free for it either."""


class OverdialledCall(Value, frozen=True):
    """It was dialled without a reserved agent, and none is free now. `may_wait`: one may be, within its threshold."""

    owner: CallOwner
    may_wait: bool


Connection = Allocated | NoneFree | PodWait | MustHangUp | GivenUp | ExternalAgents | OverdialledCall


class Connector:
    def __init__(
        self,
        allocator: Allocator,
        addresses: PodAddresses,
        database: Database,
        clock: Clock,
        resumer: Resumer,
        *,
        are_agents_elsewhere: bool = False,
    ):
        self._allocator = allocator
        self._addresses = addresses
        self._database = database
        self._clock = clock
        self._resumer = resumer
        self._are_agents_elsewhere = are_agents_elsewhere

    async def connect(self, call: CallToConnect) -> Connection:
        if call.over_turn is not None:
            return await self._resumer.resume(call.call_id, call.attempt_id, call.over_turn)
        merchant_id, is_external = call.merchant_id, self._are_agents_elsewhere
        owner: CallOwner | None = None
        if call.is_dialled:
            try:
                if reserved := await self._allocator.begin(call.attempt_id, call.call_id):
                    return reserved
                owner = await self._allocator.ask(self._owner(call.attempt_id))
                merchant_id = owner.merchant_id if owner else ""
                is_external = is_external or (owner is not None and owner.are_agents_elsewhere)
            except EngineSilent:
                if named := self._named_in_url(call):
                    return named
        allocation = await self._allocator.allocate(
            call.call_id, merchant_id, attempt_id=call.attempt_id, may_wait=not is_external
        )
        if not isinstance(allocation, NoneFree | PodWait):
            return allocation
        if is_external:
            return ExternalAgents()
        if owner is not None and owner.is_overdialled:
            return OverdialledCall(owner, isinstance(allocation, PodWait))
        return allocation

    async def _owner(self, attempt_id: UUID) -> CallOwner | None:
        async with self._database.connection() as conn:
            return await attempts.owner(conn, attempt_id)

    def _named_in_url(self, call: CallToConnect) -> Allocated | None:
        """None: no slot was reserved, or so long ago that another call may have it, or this process does not have the
        pod's address."""
        agent = call.agent
        if agent is None or agent.until_s < self._clock.now().timestamp():
            return None
        address = self._addresses.find(agent.incarnation)
        return self._allocator.from_url(address, call.call_id, call.attempt_id) if address else None

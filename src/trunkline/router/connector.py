"""An answered call and its agent: the one that was kept with the dial, the one that its URL names, or another.

kept row (Postgres) ─ silent ─► the pod of the answer URL ─ none, or too old ─► allocate, as for any other call
     │ none, or lost
     └────────────────────────────────────────────────────────────────────► allocate
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
from trunkline.telephony.carrier import KeptAgent
from trunkline.value import Value


class CallToConnect(Value, frozen=True):
    """A call that wants an agent. `is_dialled`: we called, so an agent may be kept for it, `agent` as its URL says.
    `over_turn`: it had one, and this stream of it is over."""

    call_id: str
    attempt_id: UUID
    is_dialled: bool
    merchant_id: str = ""
    agent: KeptAgent | None = None
    over_turn: int | None = None


class Elsewhere(Value, frozen=True):
    """Its agents are not ours, and none of ours is free for it either."""


class OverdialledCall(Value, frozen=True):
    """No agent was kept for it, by choice, and none is free now. `may_wait`: one may be within its threshold."""

    owner: CallOwner
    may_wait: bool


Connection = Allocated | NoneFree | PodWait | MustHangUp | GivenUp | Elsewhere | OverdialledCall


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
        merchant_id, is_elsewhere = call.merchant_id, self._are_agents_elsewhere
        owner: CallOwner | None = None
        if call.is_dialled:
            try:
                if kept := await self._allocator.begin(call.attempt_id, call.call_id):
                    return kept
                owner = await self._allocator.ask(self._owner(call.attempt_id))
                merchant_id = owner.merchant_id if owner else ""
                is_elsewhere = is_elsewhere or (owner is not None and owner.are_agents_elsewhere)
            except EngineSilent:
                if named := self._named_in_url(call):
                    return named
        found = await self._allocator.allocate(
            call.call_id, merchant_id, attempt_id=call.attempt_id, may_wait=not is_elsewhere
        )
        if not isinstance(found, NoneFree | PodWait):
            return found
        if is_elsewhere:
            return Elsewhere()
        is_by_choice = owner is not None and owner.is_overdialled
        return OverdialledCall(owner, isinstance(found, PodWait)) if owner and is_by_choice else found

    async def _owner(self, attempt_id: UUID) -> CallOwner | None:
        async with self._database.connection() as conn:
            return await attempts.owner(conn, attempt_id)

    def _named_in_url(self, call: CallToConnect) -> Allocated | None:
        """None: no agent was kept, or so long ago that the slot may be another call's, or its pod is not known here."""
        agent = call.agent
        if agent is None or agent.until_s < self._clock.now().timestamp():
            return None
        address = self._addresses.find(agent.incarnation)
        return self._allocator.from_url(address, call.call_id, call.attempt_id) if address else None

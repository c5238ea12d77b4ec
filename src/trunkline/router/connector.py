"""Connects an answered call with an agent: the one reserved with the dial, the one that its URL names, or another.

reservation (Postgres) ─ silent ─► the pod of the answer URL ─ none, or too old ─► allocate, as for any other call
     │ none, or lost
     └───────────────────────────────────────────────────────────────────────► allocate
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from uuid import UUID

from trunkline.clock import Clock
from trunkline.router.addresses import PodAddresses
from trunkline.router.allocator import Allocator, EngineSilent
from trunkline.router.tokens import CallKeys, StreamKeys
from trunkline.routing import Allocation, Unallocated
from trunkline.store import attempts
from trunkline.store.attempts import CallOwner
from trunkline.store.database import Connection, Database
from trunkline.telephony.carrier import ReservedAgent
from trunkline.value import Value

# What the agent library does by default. A call at a pod that sends heartbeats more rarely may be over before the pod
# has named it.
PROMPT_INTERVAL_S = 5.0


class CallToConnect(Value, frozen=True):
    """A call that needs an agent. `is_dialled`: outbound, so a slot may be reserved for it; `agent` is the one that its
    URL names. `over_turn`: the turn of its stream that ended, if it had one."""

    call_id: str
    attempt_id: UUID
    is_dialled: bool
    merchant_id: str = ""
    agent: ReservedAgent | None = None
    over_turn: int | None = None


class Stream(Value, frozen=True):
    """Where the call's audio goes, and the parameters that the agent gets with it. `turn`: how many agents the call had
    before. `wants_status`: the carrier reports the fate of the stream."""

    url: str
    parameters: dict[str, str]
    turn: int = 0
    wants_status: bool = False


class Abandonment(Protocol):
    """What a call's policy grants a person who answered and gets no agent."""

    @property
    def message(self) -> str: ...

    @property
    def wait_max_s(self) -> float: ...


OnAbandonment = Callable[[Connection, CallOwner], Awaitable[Abandonment]]
# Reattaches a call whose attempt was written off. False: a newer attempt is live, or the lead has ended.
Reattach = Callable[[UUID, str], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Connector:
    allocator: Allocator
    addresses: PodAddresses
    stream_keys: StreamKeys
    call_keys: CallKeys
    database: Database
    clock: Clock
    on_abandonment: OnAbandonment
    reattach: Reattach
    # The agents of all calls are external.
    are_agents_elsewhere: bool = False

    async def find_stream(self, call: CallToConnect) -> Stream | Unallocated:
        """The stream of an answered call, or why it gets no agent now."""
        found = await self.connect(call)
        if isinstance(found, Unallocated) and found.why == "given_up":
            is_ours = await self.reattach(call.attempt_id, call.call_id)
            found = await self.connect(call) if is_ours else Unallocated("ended")
        if isinstance(found, Unallocated):
            return found
        # Three parameters, because Exotel takes no more: the stream's first frame names the lead.
        key = self.call_keys.sign(call.attempt_id, call.call_id, found.turn)
        parameters = {"attempt": str(call.attempt_id), "token": self.stream_keys.sign(found), "key": key}
        if found.turn:
            parameters["resumed"] = str(found.turn)
        wants_status = call.is_dialled and not self._is_prompt(found.slot.pod)
        return Stream(self.stream_keys.url(found), parameters, found.turn, wants_status)

    async def connect(self, call: CallToConnect) -> Allocation | Unallocated:
        if call.over_turn is not None:
            return await self.allocator.resume(call.call_id, call.attempt_id, call.over_turn)
        merchant_id, is_external = call.merchant_id, self.are_agents_elsewhere
        owner: CallOwner | None = None
        if call.is_dialled:
            try:
                if reserved := await self.allocator.begin(call.attempt_id, call.call_id):
                    return reserved
                owner = await self.allocator.ask(partial(attempts.owner, attempt_id=call.attempt_id))
                merchant_id = owner.merchant_id if owner else ""
                is_external = is_external or (owner is not None and owner.are_agents_elsewhere)
            except EngineSilent:
                if named := self._named_in_url(call):
                    return named
        found = await self.allocator.allocate(
            call.call_id, merchant_id, attempt_id=call.attempt_id, may_wait=not is_external
        )
        if isinstance(found, Unallocated) and found.why in ("busy", "hold", "unknown"):
            if is_external:
                return Unallocated("elsewhere")
            if owner is not None and owner.is_overdialled:
                return await self._abandoned(owner, may_wait=found.why == "hold")
        return found

    async def _abandoned(self, owner: CallOwner, *, may_wait: bool) -> Unallocated:
        """The call was dialled without a reserved agent, and none is free now."""
        async with self.database.connection() as conn:
            granted = await self.on_abandonment(conn, owner)
        return Unallocated(
            "hold" if may_wait else "busy", message=granted.message, wait_max_s=granted.wait_max_s
        )

    def _named_in_url(self, call: CallToConnect) -> Allocation | None:
        """None: no slot was reserved, or so long ago that another call may have it, or this process does not have the
        pod's address."""
        agent = call.agent
        if agent is None or agent.until_s < self.clock.now().timestamp():
            return None
        address = self.addresses.find(agent.incarnation)
        return self.allocator.from_url(address, call.call_id, call.attempt_id) if address else None

    def _is_prompt(self, pod: str) -> bool:
        """Whether the pod itself says soon enough that it has the call. Of one that this process does not know yet, or
        that sends no heartbeats, only the carrier may say it. The outcome of a call that came in needs no witness."""
        address = self.addresses.find_pod(pod)
        return bool(address and address.interval_s and address.interval_s <= PROMPT_INTERVAL_S)

"""Finds the stream of an answered call: where its audio goes, or why it gets no agent now."""

import math
from collections.abc import Awaitable, Callable
from typing import Protocol

from trunkline.router.addresses import PodAddresses
from trunkline.router.allocator import Allocated, GivenUp, MustHangUp, NoneFree, PodWait
from trunkline.router.call_tokens import CallKeys
from trunkline.router.connector import CallToConnect, Connector, ExternalAgents, OverdialledCall
from trunkline.store.attempts import CallOwner
from trunkline.store.database import Connection, Database
from trunkline.value import Value

# What the agent library does by default. A call at a pod that sends heartbeats more rarely may be over before the pod
# has named it.
PROMPT_INTERVAL_S = 5.0


class Stream(Value, frozen=True):
    """Where the call's audio goes, and the parameters that the agent gets with it. `turn`: how many agents the call had
    before. `wants_status`: the carrier reports the fate of the stream."""

    url: str
    parameters: dict[str, str]
    turn: int = 0
    wants_status: bool = False


class NoStream(Value, frozen=True):
    """Why a call gets no agent now. `hold`: it may wait for one. `unknown`: neither engine answered. `busy`: none is
    free. `elsewhere`: its agents are external. `ended`: hang up. `given_up`: the attempt was written off and has to be
    reattached first. For an overdialled call: the message that replaces the fallback's, and its longest wait."""

    why: str
    message: str = ""
    wait_max_s: float = math.inf


class Abandonment(Protocol):
    """What a call's policy grants a person who answered and gets no agent."""

    @property
    def message(self) -> str: ...

    @property
    def wait_max_s(self) -> float: ...


OnAbandonment = Callable[[Connection, CallOwner], Awaitable[Abandonment]]


class StreamFinder:
    def __init__(
        self,
        connector: Connector,
        addresses: PodAddresses,
        call_keys: CallKeys,
        database: Database,
        on_abandonment: OnAbandonment,
    ):
        self._connector = connector
        self._addresses = addresses
        self._call_keys = call_keys
        self._database = database
        self._on_abandonment = on_abandonment

    async def find(self, call: CallToConnect) -> Stream | NoStream:
        match await self._connector.connect(call):
            case Allocated() as pod:
                return self._stream(call, pod)
            case NoneFree(is_known=is_known):
                return NoStream("busy" if is_known else "unknown")
            case PodWait():
                return NoStream("hold")
            case OverdialledCall(owner=owner, may_wait=may_wait):
                return await self._abandoned(owner, may_wait=may_wait)
            case ExternalAgents():
                return NoStream("elsewhere")
            case GivenUp():
                return NoStream("given_up")
            case MustHangUp():
                return NoStream("ended")

    def _stream(self, call: CallToConnect, pod: Allocated) -> Stream:
        # Three parameters, because Exotel takes no more: the stream's first frame names the lead.
        key = self._call_keys.sign(call.attempt_id, call.call_id, pod.turn)
        parameters = {"attempt": str(call.attempt_id), "token": pod.token, "key": key}
        if pod.turn:
            parameters["resumed"] = str(pod.turn)
        return Stream(pod.ws_url, parameters, pod.turn, call.is_dialled and not self._is_prompt(pod.pod))

    def _is_prompt(self, pod: str) -> bool:
        """Whether the pod itself says soon enough that it has the call. Of one that this process does not know yet, or
        that sends no heartbeats, only the carrier may say it. The outcome of a call that came in needs no witness."""
        address = self._addresses.find_pod(pod)
        return bool(address and address.interval_s and address.interval_s <= PROMPT_INTERVAL_S)

    async def _abandoned(self, owner: CallOwner, *, may_wait: bool) -> NoStream:
        async with self._database.connection() as conn:
            granted = await self._on_abandonment(conn, owner)
        return NoStream("hold" if may_wait else "busy", granted.message, granted.wait_max_s)

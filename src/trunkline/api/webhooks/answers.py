"""What the carrier shall do with a call: connect it to a pod, let it wait, say that nobody is free, or end it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from trunkline.api.webhooks.reading import Heard
from trunkline.dispatch.inbound import Inbound, Taken, Turned
from trunkline.store import attempts
from trunkline.store.attempts import Current
from trunkline.store.database import UNAVAILABLE, Database
from trunkline.telemetry import bind, get_logger
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import Document
from trunkline.value import Value

log = get_logger(__name__)

BUSY_MESSAGE = "All our agents are busy. Please try again later."
# How long a call on hold waits before the carrier asks again.
HOLD_S = 5


class Stream(Value, frozen=True):
    """Where the call's audio goes, and what the agent is told with it."""

    url: str
    parameters: dict[str, str]


class Reply(Value, frozen=True):
    """What the carrier is told, and whether there was no agent for the call, or one that is not ours to see: that
    decides what becomes of its lead."""

    document: Document
    no_agent: bool = False
    is_external: bool = False

    @property
    def agent_joined(self) -> bool | None:
        """As the call's event tells it. None: an agent was given to the call, and has to show itself."""
        if self.no_agent:
            return False
        return True if self.is_external else None


# Gives a call a pod, by its id, its attempt and its merchant: its stream, "hold" while it waits for one, "busy" when
# none is free, "ended" when the call is over already.
FindStream = Callable[[str, UUID, str], Awaitable[Stream | str]]


@dataclass(frozen=True, slots=True)
class Answers:
    database: Database
    inbound: Inbound
    find_stream: FindStream
    keys: CallbackKeys

    async def to_answered(self, heard: Heard) -> Reply:
        """The answer gate: a call that was superseded, or that somebody wants ended, is hung up. If the truth cannot be
        read, it connects."""
        with bind(attempt_id=str(heard.attempt_id)):
            current = await self._current(heard.attempt_id)
            if current is not None and not current.may_connect:
                log.warning(
                    "answer.not_connected",
                    call_id=heard.event.call_id,
                    reason="hang_up_wanted" if current.hang_up_wanted else "superseded",
                )
                return Reply(heard.carrier.hang_up_document())
            return await self._connect(heard, current.merchant_id if current else "")

    async def to_arrived(self, heard: Heard) -> Document:
        """A call rings at one of our numbers."""
        event, carrier = heard.event, heard.carrier
        with bind(attempt_id=str(heard.attempt_id)):
            try:
                admitted = await self.inbound.admit(
                    carrier.name, heard.tag.account, event.call_id, event.to, event.from_
                )
            except UNAVAILABLE as error:
                # Somebody rings. That nobody can write it down is no reason to leave them alone.
                log.error("inbound.store_unavailable", error=str(error))
                return (await self._connect(heard, "")).document
            match admitted:
                case Taken(is_over=True):
                    return carrier.hang_up_document()
                case Taken(merchant_id=merchant_id):
                    return (await self._connect(heard, merchant_id)).document
                case Turned():
                    return _turn_away(heard, admitted)

    async def _connect(self, heard: Heard, merchant_id: str) -> Reply:
        carrier, call_id = heard.carrier, heard.event.call_id
        if not carrier.streams:
            return Reply(carrier.answer_document("", {"attempt": str(heard.attempt_id)}), is_external=True)
        match await self.find_stream(call_id, heard.attempt_id, merchant_id):
            case Stream(url=url, parameters=parameters):
                return Reply(carrier.answer_document(url, parameters))
            case "ended":
                return Reply(carrier.hang_up_document())
            case "hold":
                return Reply(carrier.hold_document(HOLD_S, self._again_url(heard)))
            case _:
                log.warning("answer.no_pod", call_id=call_id)
                return Reply(carrier.busy_document(BUSY_MESSAGE), no_agent=True)

    def _again_url(self, heard: Heard) -> str:
        return callback_url(
            heard.base_url, heard.carrier.name, "answer", heard.attempt_id, self.keys, heard.tag.account
        )

    async def _current(self, attempt_id: UUID) -> Current | None:
        try:
            async with self.database.connection() as conn:
                return await attempts.current(conn, attempt_id)
        except UNAVAILABLE as error:
            log.error("answer.store_unavailable", error=str(error))
            return None


def _turn_away(heard: Heard, turned: Turned) -> Document:
    log.info("inbound.turned", reason=turned.reason, otherwise=turned.otherwise)
    match turned.otherwise:
        case "message":
            return heard.carrier.busy_document(turned.message)
        case "redirect":
            return heard.carrier.redirect_document(turned.redirect_to)
        case "reject":
            return heard.carrier.reject_document()

"""What the carrier shall do with a call: connect it to a pod, let it wait, say that nobody is free, or end it.

A document is given whatever is away or slow. An answered call has 0.9 s to get its pod; then it holds and asks again,
where its carrier can hold, for as long as `ROUTER_HOLD_MAX` says, and then gets the operator's fallback.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from trunkline.api.webhooks.reading import VerifiedWebhook
from trunkline.dispatch.inbound import Inbound, Taken, Turned
from trunkline.in_time import in_time
from trunkline.router.connector import CallToConnect
from trunkline.router.stream_finder import NoStream, Stream
from trunkline.store.database import UNAVAILABLE
from trunkline.telemetry import bind, get_logger
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import AnswerFallback, Document
from trunkline.value import Value, replace

log = get_logger(__name__)

# How long a call on hold waits before the carrier asks again.
HOLD_S = 1
# Pods are looked for until then, from the moment the carrier asked. The rest of 1.2 s is for the way back.
CONNECT_S = 0.9
# Of that, for admitting a call that comes in: one short transaction.
ADMIT_SHARE = 0.5


class AnswerReply(Value, frozen=True):
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


FindStream = Callable[[CallToConnect], Awaitable[Stream | NoStream]]
# Takes up a call that was given up and is answered now. False: a newer attempt is calling, or the lead has ended.
Adopt = Callable[[UUID, str], Awaitable[bool]]


async def never_adopt(attempt_id: UUID, call_id: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Answers:
    inbound: Inbound
    find_stream: FindStream
    keys: CallbackKeys
    adopt: Adopt = never_adopt
    fallback: AnswerFallback = AnswerFallback()  # noqa: RUF009  frozen
    hold_max_s: float = 0.0
    connect_s: float = CONNECT_S

    async def to_answered(self, heard: VerifiedWebhook) -> AnswerReply:
        """The answer gate: whether the call is still wanted is decided with its pod, in one step. A call that was
        superseded, or that somebody wants ended, is hung up."""
        with bind(attempt_id=str(heard.attempt_id)):
            agent = heard.tag.agent or heard.event.agent
            is_dialled = heard.event.direction == "outbound"
            answered = CallToConnect(heard.event.call_id, heard.attempt_id, is_dialled, agent=agent)
            return await self._connect(heard, answered)

    async def to_resumed(self, heard: VerifiedWebhook) -> Document:
        """A stream has closed. If its call was not released, its agent was lost, and the person gets another one."""
        event = heard.event
        with bind(attempt_id=str(heard.attempt_id)):
            if event.kind == "ended":
                return heard.carrier.hang_up_document()
            is_dialled = event.direction == "outbound"
            call = CallToConnect(event.call_id, heard.attempt_id, is_dialled, over_turn=heard.tag.turn)
            return (await self._connect(heard, call)).document

    async def to_arrived(self, heard: VerifiedWebhook) -> Document:
        """A call rings at one of our numbers."""
        event, carrier = heard.event, heard.carrier
        answered = CallToConnect(event.call_id, heard.attempt_id, is_dialled=False)
        with bind(attempt_id=str(heard.attempt_id)):
            try:
                admitting = self.inbound.admit(
                    carrier.name, heard.tag.account, event.call_id, event.to, event.from_
                )
                admitted = await in_time(self.connect_s * ADMIT_SHARE, admitting)
            except UNAVAILABLE as error:
                # Somebody rings. That nobody can write it down is no reason to leave them alone.
                log.error("inbound.store_unavailable", error=str(error))
                return (await self._connect(heard, answered)).document
            match admitted:
                case Taken(is_over=True):
                    return carrier.hang_up_document()
                case Taken(merchant_id=merchant_id):
                    own = CallToConnect(
                        event.call_id, heard.attempt_id, is_dialled=False, merchant_id=merchant_id
                    )
                    return (await self._connect(heard, own)).document
                case Turned():
                    return _turn_away(heard, admitted)

    async def _connect(self, heard: VerifiedWebhook, answered: CallToConnect) -> AnswerReply:
        carrier = heard.carrier
        if not carrier.streams:
            return AnswerReply(
                carrier.answer_document("", {"attempt": str(answered.attempt_id)}), is_external=True
            )
        match await self._find(heard, answered):
            case Stream() as stream:
                then_url = self._url(heard, "resume", turn=stream.turn)
                status_url = self._url(heard, "stream") if stream.wants_status else ""
                return AnswerReply(
                    carrier.answer_document(stream.url, stream.parameters, then_url, status_url)
                )
            case NoStream(why="ended"):
                log.warning("answer.not_connected", call_id=answered.call_id)
                return AnswerReply(carrier.hang_up_document())
            case NoStream(why="elsewhere"):
                return AnswerReply(carrier.fallback_document(self.fallback), is_external=True)
            case NoStream(why="hold" | "unknown", wait_max_s=wait_max_s) if self._may_hold(heard, wait_max_s):
                return AnswerReply(carrier.hold_document(HOLD_S, self._again_url(heard)))
            case NoStream(why=why, message=message):
                log.warning("answer.no_pod", call_id=answered.call_id, reason=why)
                # The operator's own URL is somebody else's agent; an apology is none.
                is_external = bool(self.fallback.url)
                fallback = replace(self.fallback, message=message) if message else self.fallback
                document = carrier.fallback_document(fallback)
                return AnswerReply(document, no_agent=not is_external, is_external=is_external)

    async def _find(self, heard: VerifiedWebhook, answered: CallToConnect) -> Stream | NoStream:
        """Whatever goes wrong is an answer too: somebody is on the line."""
        passed_s = asyncio.get_running_loop().time() - heard.asked_at_s if heard.asked_at_s else 0.0
        try:
            return await in_time(max(self.connect_s - passed_s, 0.05), self._stream_of(answered))
        except UNAVAILABLE as error:
            log.error("answer.engines_silent", call_id=answered.call_id, error=str(error))
        except Exception as error:
            log.error("answer.failed", call_id=answered.call_id, exc_info=error)
        return NoStream("unknown")

    async def _stream_of(self, answered: CallToConnect) -> Stream | NoStream:
        found = await self.find_stream(answered)
        if found == NoStream("given_up"):
            is_ours = await self.adopt(answered.attempt_id, answered.call_id)
            found = await self.find_stream(answered) if is_ours else NoStream("ended")
        return found

    def _may_hold(self, heard: VerifiedWebhook, wait_max_s: float) -> bool:
        """How often it has held stands in its URL, signed, so that waiting ends also while no engine counts. Who may
        wait for 2 s has to be told before that."""
        held_s = (heard.tag.held + 1) * HOLD_S
        return heard.carrier.can_hold and held_s <= self.hold_max_s and held_s < wait_max_s

    def _again_url(self, heard: VerifiedWebhook) -> str:
        held = heard.tag.held + 1
        if heard.tag.kind == "resume":
            return self._url(heard, "resume", turn=heard.tag.turn, held=held)
        return self._url(heard, "answer", held=held, agent=heard.tag.agent)

    def _url(self, heard: VerifiedWebhook, kind: Any, **more: Any) -> str:
        return callback_url(
            heard.base_url, heard.carrier.name, kind, heard.attempt_id, self.keys, heard.tag.account, **more
        )


def _turn_away(heard: VerifiedWebhook, turned: Turned) -> Document:
    log.info("inbound.turned", reason=turned.reason, otherwise=turned.otherwise)
    match turned.otherwise:
        case "message":
            return heard.carrier.busy_document(turned.message)
        case "redirect":
            return heard.carrier.redirect_document(turned.redirect_to)
        case "reject":
            return heard.carrier.reject_document()

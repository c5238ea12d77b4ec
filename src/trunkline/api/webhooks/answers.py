"""Chooses the document for a call: connect it to a pod, hold it, play that no agent is free, or end it.

The carrier gets a document whatever is away or slow. An answered call has 0.9 s to get its pod; then it is held and
polls again, if its carrier can hold, up to `ROUTER_HOLD_MAX`, and then gets the operator's fallback.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from trunkline.api.webhooks.reading import VerifiedWebhook
from trunkline.dispatch.inbound import Inbound, Taken, Turned
from trunkline.in_time import in_time
from trunkline.router.config import HOLD_S
from trunkline.router.connector import CallToConnect, Stream
from trunkline.routing import Unallocated
from trunkline.store.database import UNAVAILABLE
from trunkline.telemetry import get_logger
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import AnswerFallback, Document
from trunkline.value import Value, replace

log = get_logger(__name__)

# The time for an allocation, from the carrier's request. The rest of the 1.2 s is for the response.
CONNECT_S = 0.9
# The share of it for admitting an inbound call: one short transaction.
ADMIT_SHARE = 0.5


class AnswerReply(Value, frozen=True):
    """The document for the carrier. `agent_joined`, for the call's event, decides the outcome of its lead: False, the
    call got no agent; True, an external one; None, an agent of a pod, which has to prove that it joined."""

    document: Document
    agent_joined: bool | None = None


FindStream = Callable[[CallToConnect], Coroutine[Any, Any, Stream | Unallocated]]


@dataclass(frozen=True, slots=True)
class Answers:
    inbound: Inbound
    find_stream: FindStream
    keys: CallbackKeys
    fallback: AnswerFallback = AnswerFallback()  # noqa: RUF009  frozen
    hold_max_s: float = 0.0
    connect_s: float = CONNECT_S

    async def reply(self, webhook: VerifiedWebhook) -> AnswerReply:
        """The document for a call that was answered, whose stream has closed, or that comes in."""
        event, tag = webhook.event, webhook.tag
        call = CallToConnect(event.call_id, webhook.attempt_id, event.direction == "outbound")
        match tag.kind:
            case "answer":
                # The answer gate: one step decides whether the call is still wanted, and allocates its pod. A call that
                # was superseded or aborted is hung up.
                return await self._connect(webhook, replace(call, agent=tag.agent or event.agent))
            case "resume" if event.kind == "ended":
                return AnswerReply(webhook.carrier.hang_up_document())
            case "resume":
                # If its call was not released, its agent was lost, and the person gets another one.
                return await self._connect(webhook, replace(call, over_turn=tag.turn))
            case _:
                return await self._admit(webhook, replace(call, is_dialled=False))

    async def _admit(self, webhook: VerifiedWebhook, call: CallToConnect) -> AnswerReply:
        """An inbound call rings."""
        event, carrier = webhook.event, webhook.carrier
        admitting = self.inbound.admit(
            carrier.name, webhook.tag.account, event.call_id, event.to, event.from_
        )
        try:
            admitted = await in_time(self.connect_s * ADMIT_SHARE, admitting)
        except UNAVAILABLE as error:
            # The caller still gets an agent although Postgres cannot record the call.
            log.error("inbound.store_unavailable", error=str(error))
            return await self._connect(webhook, call)
        match admitted:
            case Taken(is_over=True):
                return AnswerReply(carrier.hang_up_document())
            case Taken(merchant_id=merchant_id):
                return await self._connect(webhook, replace(call, merchant_id=merchant_id))
            case Turned():
                return AnswerReply(_refuse(webhook, admitted))

    async def _connect(self, webhook: VerifiedWebhook, call: CallToConnect) -> AnswerReply:
        carrier = webhook.carrier
        if not carrier.streams:
            attempt = {"attempt": str(call.attempt_id)}
            return AnswerReply(carrier.answer_document("", attempt), agent_joined=True)
        match await self._find(webhook, call):
            case Stream() as stream:
                then_url = self._url(webhook, "resume", turn=stream.turn)
                status_url = self._url(webhook, "stream") if stream.wants_status else ""
                return AnswerReply(
                    carrier.answer_document(stream.url, stream.parameters, then_url, status_url)
                )
            case Unallocated(why="ended" | "superseded" | "taken"):
                log.warning("answer.not_connected", call_id=call.call_id)
                return AnswerReply(carrier.hang_up_document())
            case Unallocated(why="elsewhere"):
                return AnswerReply(carrier.fallback_document(self.fallback), agent_joined=True)
            case Unallocated(why="hold" | "unknown", wait_max_s=wait_max_s) if self._may_hold(
                webhook, wait_max_s
            ):
                return AnswerReply(carrier.hold_document(HOLD_S, self._again_url(webhook)))
            case Unallocated(why=why, message=message):
                log.warning("answer.no_pod", call_id=call.call_id, reason=why)
                fallback = replace(self.fallback, message=message) if message else self.fallback
                # The operator's own URL is an external agent; an apology is none.
                return AnswerReply(carrier.fallback_document(fallback), agent_joined=bool(self.fallback.url))

    async def _find(self, webhook: VerifiedWebhook, call: CallToConnect) -> Stream | Unallocated:
        """Never raises: a person waits on the phone, so every error becomes a document."""
        passed_s = asyncio.get_running_loop().time() - webhook.asked_at_s if webhook.asked_at_s else 0.0
        try:
            return await in_time(max(self.connect_s - passed_s, 0.05), self.find_stream(call))
        except UNAVAILABLE as error:
            log.error("answer.engines_silent", call_id=call.call_id, error=str(error))
        except Exception as error:
            log.error("answer.failed", call_id=call.call_id, exc_info=error)
        return Unallocated("unknown")

    def _may_hold(self, webhook: VerifiedWebhook, wait_max_s: float) -> bool:
        """Its signed URL counts how often it was held, so that the wait ends also while no engine answers. A call that
        may wait for 2 s must get its last document before that."""
        held_s = (webhook.tag.held + 1) * HOLD_S
        return webhook.carrier.can_hold and held_s <= self.hold_max_s and held_s < wait_max_s

    def _again_url(self, webhook: VerifiedWebhook) -> str:
        held = webhook.tag.held + 1
        if webhook.tag.kind == "resume":
            return self._url(webhook, "resume", turn=webhook.tag.turn, held=held)
        return self._url(webhook, "answer", held=held, agent=webhook.tag.agent)

    def _url(self, webhook: VerifiedWebhook, kind: Any, **more: Any) -> str:
        carrier, account = webhook.carrier.name, webhook.tag.account
        return callback_url(webhook.base_url, carrier, kind, webhook.attempt_id, self.keys, account, **more)


def document_response(document: Document) -> Response:
    return Response(document.body, document.status, media_type=document.content_type)


def _refuse(webhook: VerifiedWebhook, turned: Turned) -> Document:
    log.info("inbound.turned", reason=turned.reason, otherwise=turned.otherwise)
    match turned.otherwise:
        case "message":
            return webhook.carrier.busy_document(turned.message)
        case "redirect":
            return webhook.carrier.redirect_document(turned.redirect_to)
        case "reject":
            return webhook.carrier.reject_document()

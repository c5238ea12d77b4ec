"""Chooses the document for a call: connect it to a pod, hold it, play that no agent is free, or end it.

The carrier gets a document whatever is away or slow. An answered call has 0.9 s to get its pod; then it is held and
polls again, if its carrier can hold, up to `ROUTER_HOLD_MAX`, and then gets the operator's fallback.

A person waits on the phone, so the document does not wait for a commit: `LateEvents` writes its event afterwards, and
retries while Postgres is away. If the process dies, the carrier's webhook at the end of the call carries the same
facts.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from starlette.responses import Response

from trunkline.dispatch.inbound import Inbound, Taken, Turned
from trunkline.errors import StoreUnavailable
from trunkline.event_loop import OnDemandTask
from trunkline.in_time import in_time
from trunkline.router.allocator import CallToConnect, Stream
from trunkline.router.config import HOLD_S
from trunkline.routing import Unallocated
from trunkline.store.database import UNAVAILABLE
from trunkline.store.mailboxes import NewEvent, Receipt
from trunkline.telemetry import get_logger, metrics
from trunkline.telephony.callbacks import CallbackKeys, callback_url
from trunkline.telephony.carrier import AnswerFallback, CallbackTag, CallEvent, Document, Documents
from trunkline.value import Value, replace

log = get_logger(__name__)

# The time for an allocation, from the carrier's request. The rest of the 1.2 s is for the response.
CONNECT_S = 0.9
# The share of it for admitting an inbound call: one short transaction.
ADMIT_SHARE = 0.5
# Late events beyond these are dropped, and counted.
WAITING_MAX = 10_000
RETRY_S = (0.2, 2.0)
BATCH_MAX = 200


class VerifiedWebhook(Value, frozen=True):
    """An event, and its attempt: a dialled one, or that of an inbound call."""

    carrier: Documents
    tag: CallbackTag
    event: CallEvent
    attempt_id: UUID
    # The URL that the carrier has, up to its path.
    base_url: str
    # When the request came, on the clock of the loop: the deadline of an answer counts from here.
    asked_at_s: float = 0.0
    # False: only the URL proves it. It may get a document, and nothing may be written.
    is_proven: bool = True


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
                log.info("inbound.turned", reason=admitted.reason, otherwise=admitted.otherwise)
                match admitted.otherwise:
                    case "message":
                        return AnswerReply(carrier.busy_document(admitted.message))
                    case "redirect":
                        return AnswerReply(carrier.redirect_document(admitted.redirect_to))
                    case "reject":
                        return AnswerReply(carrier.reject_document())

    async def _connect(self, webhook: VerifiedWebhook, call: CallToConnect) -> AnswerReply:
        carrier = webhook.carrier
        if not carrier.streams:
            attempt = {"attempt": str(call.attempt_id)}
            return AnswerReply(carrier.answer_document("", attempt), agent_joined=True)
        passed_s = asyncio.get_running_loop().time() - webhook.asked_at_s if webhook.asked_at_s else 0.0
        found: Stream | Unallocated = Unallocated("unknown")
        try:
            found = await in_time(max(self.connect_s - passed_s, 0.05), self.find_stream(call))
        except UNAVAILABLE as error:
            log.error("answer.engines_silent", call_id=call.call_id, error=str(error))
        except Exception as error:  # a person waits on the phone, so every error becomes a document
            log.error("answer.failed", call_id=call.call_id, exc_info=error)
        match found:
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


Append = Callable[[Sequence[NewEvent]], Awaitable[list[Receipt]]]


class LateEvents:
    """Memory is bounded: beyond `waiting_max` an event is dropped, and counted."""

    def __init__(
        self, append_all: Append, *, waiting_max: int = WAITING_MAX, retry_s: tuple[float, float] = RETRY_S
    ):
        self._append_all = append_all
        self._waiting_max = waiting_max
        self._retry_s = retry_s
        self._new: deque[tuple[str, NewEvent]] = deque()
        self._writer = OnDemandTask(self._write, "late events")
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._new)

    def put(self, carrier: str, event: NewEvent) -> None:
        """Never waits and never fails: the response does not depend on its event."""
        if len(self._new) >= self._waiting_max:
            self._drop(carrier, event, "too many wait")
            return
        self._new.append((carrier, event))
        self._writer.start()

    async def written(self) -> None:
        """Returns when no event waits any more."""
        await self._writer.idle()

    async def aclose(self) -> None:
        """Write the waiting events, with one try."""
        self._is_closing = True
        await self.written()
        for carrier, event in self._new:
            self._drop(carrier, event, "the process ends")
        self._new.clear()

    async def _write(self) -> None:
        wait_s, longest_s = self._retry_s
        while self._new:
            batch = [self._new[n] for n in range(min(len(self._new), BATCH_MAX))]
            try:
                receipts = await self._append_all([event for _, event in batch])
            except StoreUnavailable as error:
                log.error("answer.events_not_stored_yet", waiting=len(self._new), error=str(error))
                if self._is_closing:
                    return
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, longest_s)
                continue
            except Exception as error:  # an event that is refused must not block the others
                log.error("answer.events_not_stored", events=len(batch), exc_info=error)
                receipts = []
                for carrier, event in batch:
                    try:
                        await self._append_all([event])
                    except Exception as refused:
                        self._drop(carrier, event, type(refused).__name__)
            wait_s = self._retry_s[0]
            for _ in batch:
                self._new.popleft()
            for (carrier, _), receipt in zip(batch, receipts, strict=False):
                if not receipt.created:
                    metrics.WEBHOOKS_REPEATED.labels(carrier).inc()

    def _drop(self, carrier: str, event: NewEvent, reason: str) -> None:
        metrics.ANSWER_EVENTS_DROPPED.labels(carrier).inc()
        log.error("answer.event_dropped", attempt_id=event.key, reason=reason)

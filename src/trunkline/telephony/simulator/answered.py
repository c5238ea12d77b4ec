"""Fetches and executes the document of an answered call, and the documents that it leads to.

A URL is requested as often as the carrier's rule and the URL's retry orders say; if it gives no readable document, the
call's fallback URL is requested the same way, once. Without a document the carrier plays an apology and hangs up.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trunkline.http.connections import Exchange, HttpReply
from trunkline.telephony.simulator.answered_calls import DocumentEffect, DocumentRecord
from trunkline.telephony.simulator.media import MediaStreams
from trunkline.telephony.simulator.webhooks import Webhooks
from trunkline.telephony.simulator.wire import (
    Forward,
    HangUpOrder,
    Pause,
    Redirect,
    Say,
    StreamOrder,
    Talk,
    Verb,
)

if TYPE_CHECKING:
    from trunkline.telephony.simulator.calls import SimulatedCall

# Bounds a call that is redirected for ever: an hour of holds of 1 s is less.
DOCUMENTS_MAX = 5000
SPEECH_S_PER_CHARACTER = 0.06


class Answered:
    def __init__(
        self, webhooks: Webhooks, streams: MediaStreams, time_scale: float, now: Callable[[], float]
    ) -> None:
        self._webhooks = webhooks
        self._streams = streams
        self._time_scale = time_scale
        self._now = now

    async def follow(self, call: "SimulatedCall", verbs: Sequence[Verb] | None = None) -> None:
        """Returns when the documents are executed: then the carrier hangs up."""
        if verbs is None:
            verbs = await self.document(call, call.order.answer_url)
        for _ in range(DOCUMENTS_MAX):
            following = await self._perform(call, verbs)
            if following is None:
                return
            verbs = await self.document(call, following)

    async def document(self, call: "SimulatedCall", url: str) -> Sequence[Verb]:
        """The verbs of the document; none if no URL gave a readable one."""
        if not url:
            return _read(call, call.order.inline_document) or ()
        verbs = await self._fetched(call, url)
        if verbs is None and call.order.fallback_url:
            verbs = await self._fetched(call, call.order.fallback_url, failed_url=url)
        return verbs or ()

    async def _fetched(self, call: "SimulatedCall", url: str, failed_url: str = "") -> Sequence[Verb] | None:
        record = DocumentRecord(_kind(url), self._now(), is_fallback=bool(failed_url))
        if call.answered is not None:
            call.answered.documents.append(record)

        def tried(outcome: Exchange) -> None:
            status = outcome.status if isinstance(outcome, HttpReply) else 0
            record.statuses.append(status)
            record.bad += status >= 400 and not call.wire.is_refusal(status)

        answer = await self._webhooks.ask(call.wire.question(call, url, failed_url), tried=tried)
        record.took_s = self._now() - record.asked_at
        readable = isinstance(answer, HttpReply) and answer.status < 400
        self._webhooks.counts["documents" if readable else "documents failed"] += 1
        if not isinstance(answer, HttpReply) or not readable:
            return None
        verbs = _read(call, answer.body)
        if verbs is None:
            record.bad += 1
        else:
            record.said = _effect(verbs)
        return verbs

    async def _perform(self, call: "SimulatedCall", verbs: Sequence[Verb]) -> str | None:
        """The URL of the next document, if there is one."""
        for verb in verbs:
            match verb:
                case Say(text):
                    await asyncio.sleep(len(text) * SPEECH_S_PER_CHARACTER * self._time_scale)
                case Pause(length_s):
                    await asyncio.sleep(length_s * self._time_scale)
                case Redirect(url):
                    return url
                case StreamOrder(url):
                    call.on_stream(url)
                    await self._streams.run(call, verb)
                    call.on_silence()
                case Talk() | Forward():
                    self._note_talk(call, verb)
                    call.on_connected()
                    await asyncio.get_running_loop().create_future()  # its end is the end of this task
                case HangUpOrder():
                    return None
        return None

    def _note_talk(self, call: "SimulatedCall", verb: Talk | Forward) -> None:
        if call.answered is None:
            return
        if isinstance(verb, Forward):
            call.answered.forwarded_at = self._now()
        elif call.answered.agent_at is None:
            call.answered.agent_at = self._now()


def _read(call: "SimulatedCall", body: bytes) -> Sequence[Verb] | None:
    """None: it cannot be read."""
    try:
        return call.wire.read_document(body)
    except ValueError:
        return None


def _kind(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2]


def _effect(verbs: Sequence[Verb]) -> DocumentEffect:
    """The effect of a document, as one word."""
    kinds = {type(verb) for verb in verbs}
    effects: tuple[tuple[type[Verb], DocumentEffect], ...] = (
        (StreamOrder, "stream"),
        (Talk, "agent"),
        (Forward, "forward"),
        (Say, "message"),
        (Pause, "hold"),
        (Redirect, "redirect"),
        (HangUpOrder, "hang_up"),
    )
    return next((effect for kind, effect in effects if kind in kinds), "nothing")

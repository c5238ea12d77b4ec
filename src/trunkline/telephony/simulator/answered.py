"""An answered call: its document is fetched and followed, and the ones that it leads to.

A URL is asked as often as the carrier's rule and the orders in it say; when it gave no document that can be read, the
call's fallback URL is asked the same way, once. Without a document the person hears an apology and the call is over.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trunkline.telephony.http_exchange import Exchange, HttpReply
from trunkline.telephony.simulator.answered_calls import DocumentAsked, Said
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

# A call that is only ever redirected ends here: an hour of holds of 1 s is less.
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
        """Returns when there is nothing more to do: the carrier then hangs up."""
        if verbs is None:
            verbs = await self.document(call, call.order.answer_url)
        for _ in range(DOCUMENTS_MAX):
            following = await self._perform(call, verbs)
            if following is None:
                return
            verbs = await self.document(call, following)

    async def document(self, call: "SimulatedCall", url: str) -> Sequence[Verb]:
        """What is to be done; nothing, where nobody gave a document that can be read."""
        if not url:
            return _read(call, call.order.inline_document) or ()
        verbs = await self._fetched(call, url)
        if verbs is None and call.order.fallback_url:
            verbs = await self._fetched(call, call.order.fallback_url, failed_url=url)
        return verbs or ()

    async def _fetched(self, call: "SimulatedCall", url: str, failed_url: str = "") -> Sequence[Verb] | None:
        asked = DocumentAsked(_kind(url), self._now(), is_fallback=bool(failed_url))
        if call.answered is not None:
            call.answered.documents.append(asked)

        def tried(outcome: Exchange) -> None:
            status = outcome.status if isinstance(outcome, HttpReply) else 0
            asked.statuses.append(status)
            asked.bad += status >= 400 and not call.wire.is_refusal(status)

        answer = await self._webhooks.ask(call.wire.question(call, url, failed_url), tried=tried)
        asked.took_s = self._now() - asked.asked_at
        readable = isinstance(answer, HttpReply) and answer.status < 400
        self._webhooks.counts["documents" if readable else "documents failed"] += 1
        if not isinstance(answer, HttpReply) or not readable:
            return None
        verbs = _read(call, answer.body)
        if verbs is None:
            asked.bad += 1
        else:
            asked.said = _said(verbs)
        return verbs

    async def _perform(self, call: "SimulatedCall", verbs: Sequence[Verb]) -> str | None:
        """The URL of the next document, if one is asked for."""
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


def _said(verbs: Sequence[Verb]) -> Said:
    """What a document comes to, in a word."""
    kinds = {type(verb) for verb in verbs}
    words: tuple[tuple[type[Verb], Said], ...] = (
        (StreamOrder, "stream"),
        (Talk, "agent"),
        (Forward, "forward"),
        (Say, "message"),
        (Pause, "hold"),
        (Redirect, "redirect"),
        (HangUpOrder, "hang_up"),
    )
    return next((word for kind, word in words if kind in kinds), "nothing")

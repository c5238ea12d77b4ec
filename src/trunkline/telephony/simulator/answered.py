"""An answered call: its document is fetched and followed, and the ones it redirects to."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trunkline.telephony.exchange import Reply
from trunkline.telephony.simulator.media import MediaStreams
from trunkline.telephony.simulator.webhooks import Webhooks
from trunkline.telephony.simulator.wire import Forward, HangUp, Pause, Redirect, Say, Stream, Talk, Verb

if TYPE_CHECKING:
    from trunkline.telephony.simulator.calls import Call

# A call that is only ever redirected ends here.
DOCUMENTS_MAX = 50
SPEECH_S_PER_CHARACTER = 0.06


class Answered:
    def __init__(self, webhooks: Webhooks, streams: MediaStreams, time_scale: float) -> None:
        self._webhooks = webhooks
        self._streams = streams
        self._time_scale = time_scale

    async def follow(self, call: "Call", verbs: Sequence[Verb] | None = None) -> None:
        """Returns when there is nothing more to do: the carrier then hangs up."""
        if verbs is None:
            verbs = await self.document(call, call.order.answer_url)
        for _ in range(DOCUMENTS_MAX):
            following = await self._perform(call, verbs)
            if following is None:
                return
            verbs = await self.document(call, following)

    async def document(self, call: "Call", url: str) -> Sequence[Verb]:
        body = call.order.inline_document
        if url:
            answer = await self._webhooks.ask(call.wire.question(call, url))
            readable = isinstance(answer, Reply) and answer.status < 400
            self._webhooks.counts["documents" if readable else "documents failed"] += 1
            if not isinstance(answer, Reply) or not readable:
                return ()  # the person hears an apology and the call is over
            body = answer.body
        try:
            return call.wire.read_document(body)
        except ValueError:
            return ()

    async def _perform(self, call: "Call", verbs: Sequence[Verb]) -> str | None:
        """The URL of the next document, if one is asked for."""
        for verb in verbs:
            match verb:
                case Say(text):
                    await asyncio.sleep(len(text) * SPEECH_S_PER_CHARACTER * self._time_scale)
                case Pause(length_s):
                    await asyncio.sleep(length_s * self._time_scale)
                case Redirect(url):
                    return url
                case Stream(url):
                    assert call.dial is not None
                    call.dial.stream_url = url
                    await self._streams.run(call, verb)
                case Talk() | Forward():
                    call.on_connected()
                    await asyncio.get_running_loop().create_future()  # its end is the end of this task
                case HangUp():
                    return None
        return None

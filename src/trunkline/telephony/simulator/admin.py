"""The simulator's own endpoints: read the ledger, change the faults."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from aiohttp import web

from trunkline.telephony.simulator.answered_calls import summary
from trunkline.telephony.simulator.bodies import json_reply
from trunkline.telephony.simulator.calls import SimulatedCalls
from trunkline.telephony.simulator.faults import Faults
from trunkline.telephony.simulator.ledger import Ledger, peaks
from trunkline.telephony.simulator.media import MediaStreams
from trunkline.telephony.simulator.webhooks import Webhooks

PAGE_DEFAULT, PAGE_MAX = 1000, 10_000


class Admin:
    def __init__(
        self, ledger: Ledger, calls: SimulatedCalls, webhooks: Webhooks, streams: MediaStreams
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._webhooks = webhooks
        self._streams = streams

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/ledger", self._dials),
            web.get("/ledger/answered", self._answered),
            web.get("/ledger/summary", self._summary),
            web.get("/faults", self._faults),
            web.post("/faults", self._change_faults),
        ]

    async def _dials(self, request: web.Request) -> web.Response:
        """Dials in the order they were made, a page at a time: `?after=<next of the page before>`."""
        return _page(request, "dials", self._ledger.dials)

    async def _answered(self, request: web.Request) -> web.Response:
        """Answered and inbound calls, in that order, a page at a time."""
        return _page(request, "answered", self._ledger.answered)

    async def _summary(self, _request: web.Request) -> web.Response:
        dials = self._ledger.dials
        return json_reply(
            {
                "dials": len(dials),
                "live": self._ledger.live(),
                "queued": self._calls.queued(),
                "answered": sum(dial.answered_at is not None for dial in dials),
                "by_status": Counter(dial.status for dial in dials),
                "double_dials": self._ledger.double_dials(),
                "peak_by_number": {number: peak for number, (peak, _) in peaks(dials).items()},
                "webhooks": self._webhooks.counts,
                "streams": self._streams.counts,
                "agents": summary(self._ledger.answered),
            }
        )

    async def _faults(self, _request: web.Request) -> web.Response:
        return json_reply(self._calls.faults)

    async def _change_faults(self, request: web.Request) -> web.Response:
        """Changes the named faults and leaves the others."""
        try:
            change = msgspec.json.decode(await request.read(), type=dict[str, object])
            merged = msgspec.to_builtins(self._calls.faults) | change
            unknown = sorted(change.keys() - Faults.__dataclass_fields__.keys())
            if unknown:
                return json_reply({"error": f"no such fault: {', '.join(unknown)}"}, status=400)
            self._calls.faults = msgspec.convert(merged, Faults)
        except (msgspec.DecodeError, msgspec.ValidationError, ValueError) as error:
            return json_reply({"error": str(error)}, status=400)
        return json_reply(self._calls.faults)


def _page(request: web.Request, name: str, rows: Sequence[object]) -> web.Response:
    try:
        after = max(int(request.query.get("after", "0")), 0)
        limit = min(max(int(request.query.get("limit", PAGE_DEFAULT)), 1), PAGE_MAX)
    except ValueError:
        return json_reply({"error": "after and limit are whole numbers"}, status=400)
    shown = rows[after : after + limit]
    end = after + len(shown)
    return json_reply({name: shown, "next": end if end < len(rows) else None, "total": len(rows)})

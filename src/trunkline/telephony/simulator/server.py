"""The whole simulator: its components, wired, behind one port.

async with Simulator(SimulatorConfig(time_scale=0.02)) as simulator:
    simulator.base_url, simulator.ledger
"""

from collections.abc import Mapping
from types import TracebackType

from aiohttp import web

from trunkline.telephony.carrier import EndReason
from trunkline.telephony.simulator import recordings
from trunkline.telephony.simulator.activity import Activity
from trunkline.telephony.simulator.admin import Admin
from trunkline.telephony.simulator.answered import Answered
from trunkline.telephony.simulator.calls import SimulatedCall, SimulatedCalls
from trunkline.telephony.simulator.config import CarrierName, SimulatorConfig
from trunkline.telephony.simulator.exotel import SimulatedExotel
from trunkline.telephony.simulator.faults import Faults
from trunkline.telephony.simulator.ledger import Ledger
from trunkline.telephony.simulator.media import MediaStreams
from trunkline.telephony.simulator.plivo import SimulatedPlivo
from trunkline.telephony.simulator.rest import RestApi
from trunkline.telephony.simulator.twilio import SimulatedTwilio
from trunkline.telephony.simulator.vapi import SimulatedVapi
from trunkline.telephony.simulator.webhooks import WebhookClient, Webhooks
from trunkline.telephony.simulator.wire import CreateRequest

# A burst of dials opens a burst of connections; one that overflows is a dial in doubt.
BACKLOG = 1024


class Simulator:
    def __init__(self, config: SimulatorConfig | None = None) -> None:
        self.config = config or SimulatorConfig()
        self.ledger = Ledger()
        self._activity = Activity()
        self._client = WebhookClient()
        self._webhooks = Webhooks(self._client, self._activity)
        self._streams = MediaStreams(
            self.config.media_interval_s,
            self.config.stream_connect_timeout_s,
            self.ledger.now,
            self._activity,
        )
        answered = Answered(self._webhooks, self._streams, self.config.time_scale, self.ledger.now)
        self._calls = SimulatedCalls(self.config, self.ledger, self._webhooks, answered, self._activity)
        # What an operator would configure at the carrier. Exotel: the URL from which the applet of each flow requests
        # its stream. Vapi: the numbers of the organisation, and by credential the secret that signs messages.
        self.flows: dict[str, str] = {}
        self.vapi_numbers: set[str] = {
            number for one in self.config.accounts if one.carrier == "vapi" for number in one.numbers
        }
        self.vapi_credentials: dict[str, str] = {}
        parts = (self._calls, self.config.accounts)
        vapi = SimulatedVapi(*parts, self.vapi_numbers, self.vapi_credentials)
        self.vapi_analysis = vapi.analysis
        self._carriers: Mapping[CarrierName, RestApi] = {
            "twilio": SimulatedTwilio(*parts),
            "plivo": SimulatedPlivo(*parts),
            "exotel": SimulatedExotel(*parts, self.flows),
            "vapi": vapi,
        }
        self._runner = web.AppRunner(
            self._app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://{self.config.host}:{self.port}"

    @property
    def faults(self) -> Faults:
        return self._calls.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._calls.faults = faults

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.config.host, self.config.port, backlog=BACKLOG)
        await site.start()
        self.port = self._runner.addresses[0][1]
        for carrier in self._carriers.values():
            carrier.base_url = self.base_url

    def ring(
        self,
        carrier: CarrierName,
        to: str,
        from_: str,
        *,
        inbound_url: str,
        status_url: str = "",
        fallback_url: str = "",
        headers: Mapping[str, str] | None = None,
        hmac_secret: str = "",
    ) -> SimulatedCall:
        """An inbound call to one of the platform's numbers. The URLs are those that the operator enters at the
        carrier."""
        order = CreateRequest(
            to=to,
            from_=from_,
            answer_url=inbound_url,
            fallback_url=fallback_url,
            event_urls={"ended": status_url} if status_url else {},
            answer_method="GET" if carrier == "exotel" else "POST",
            headers=headers or {},
            hmac_secret=hmac_secret,
            direction="inbound",
        )
        return self._calls.arrive(self.config.account(carrier), order, self._carriers[carrier])

    def calls(self, carrier: CarrierName) -> list[SimulatedCall]:
        """All outbound and inbound calls of this carrier."""
        return [call for call in self._calls.by_sid.values() if call.account.carrier == carrier]

    def end(self, call_id: str, reason: EndReason) -> None:
        """End a call now; the carrier's webhooks report the reason."""
        self._calls.end(self._calls.by_sid[call_id], reason)

    async def stop(self) -> None:
        self._calls.close()
        await self._runner.cleanup()
        await self._activity.cancel_all()
        self._client.close()
        await self._streams.aclose()

    async def idle(self) -> None:
        """Wait until every call has ended and every webhook was delivered or dropped."""
        await self._activity.idle()

    async def __aenter__(self) -> "Simulator":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 1024)
        app.add_routes(Admin(self.ledger, self._calls, self._webhooks, self._streams).routes())
        app.add_routes(recordings.routes())
        for carrier in self._carriers.values():
            app.add_routes(carrier.routes())
        return app

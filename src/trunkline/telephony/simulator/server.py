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
from trunkline.telephony.simulator.exotel_wire import ExotelWire
from trunkline.telephony.simulator.faults import Faults
from trunkline.telephony.simulator.ledger import Ledger
from trunkline.telephony.simulator.media import MediaStreams
from trunkline.telephony.simulator.plivo_wire import PlivoWire
from trunkline.telephony.simulator.twilio_wire import TwilioWire
from trunkline.telephony.simulator.vapi_wire import VapiWire
from trunkline.telephony.simulator.webhook_client import WebhookClient
from trunkline.telephony.simulator.webhooks import Webhooks
from trunkline.telephony.simulator.wire import CreateRequest, Wire

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
        wire = (self._calls, self.config.accounts)
        self._twilio, self._plivo = TwilioWire(*wire), PlivoWire(*wire)
        self._exotel = ExotelWire(*wire, self.flows)
        self._vapi = VapiWire(*wire, self.vapi_numbers, self.vapi_credentials)
        self.vapi_analysis = self._vapi.language.analysis
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
        self._vapi.language.base_url = self._twilio.language.base_url = self.base_url

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
        wires: Mapping[CarrierName, Wire] = {
            "twilio": self._twilio.language,
            "plivo": self._plivo.language,
            "exotel": self._exotel.language,
            "vapi": self._vapi.language,
        }
        return self._calls.arrive(self.config.account(carrier), order, wires[carrier])

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
        wires = (self._twilio, self._plivo, self._exotel, self._vapi)
        admin = Admin(self.ledger, self._calls, self._webhooks, self._streams)
        app.add_routes(
            [*admin.routes(), *recordings.routes(), *(route for wire in wires for route in wire.routes())]
        )
        return app

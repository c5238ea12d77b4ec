"""The interface of a call to its carrier's protocol. One wire per carrier; the states of a call are the same for
all."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from trunkline.telephony.carrier import Direction, EndReason
from trunkline.telephony.simulator.webhooks import Letter, WebhookRetryRule
from trunkline.value import Value

if TYPE_CHECKING:
    from trunkline.telephony.simulator.calls import SimulatedCall
    from trunkline.telephony.simulator.frames import Frames

Event = Literal["initiated", "ringing", "answered", "ended"]
# `failed`: it could not be opened, or broke.
StreamEvent = Literal["started", "stopped", "failed"]

# The words of most carriers.
STATUSES: Mapping[str, str] = {
    "queued": "queued",
    "initiated": "queued",
    "ringing": "ringing",
    "answered": "in-progress",
}
END_STATUSES: Mapping[EndReason, str] = {
    "completed": "completed",
    "busy": "busy",
    "no_answer": "no-answer",
    "failed": "failed",
    "canceled": "canceled",
}


class CreateRequest(Value, frozen=True):
    """A parsed create request; or an inbound call to one of the platform's numbers."""

    to: str
    from_: str
    answer_url: str = ""
    inline_document: bytes = b""
    # Requested when a URL gave no document.
    fallback_url: str = ""
    answer_method: str = "POST"
    status_method: str = "POST"
    # The URL of each event. An event that is missing is not sent.
    event_urls: Mapping[Event, str] = msgspec.field(default_factory=dict)
    machine_url: str = ""
    recording_url: str = ""
    ring_timeout_s: float = 60.0
    time_limit_s: float = 14_400.0
    machine_detection: bool = False
    attempt: str | None = None
    direction: Direction = "outbound"
    # The headers of its webhooks, and their retries.
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    hmac_secret: str = ""
    rule: WebhookRetryRule | None = None
    # What the carrier stores with the call and returns: Exotel's custom field, Vapi's overrides.
    custom: Mapping[str, object] = msgspec.field(default_factory=dict)

    @property
    def is_inbound(self) -> bool:
        return self.direction == "inbound"

    @property
    def person(self) -> str:
        return self.from_ if self.is_inbound else self.to

    @property
    def own_number(self) -> str:
        """The platform's number."""
        return self.to if self.is_inbound else self.from_


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    length_s: float


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """`id` is the carrier's name of the stream. Without a `status_url` nothing is told of it."""

    url: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    status_url: str = ""
    status_method: str = "POST"


@dataclass(frozen=True, slots=True)
class Talk:
    """The carrier's own agent talks, until a hang-up."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The caller is connected with another number, until a hang-up."""

    to: str


@dataclass(frozen=True, slots=True)
class Redirect:
    url: str


@dataclass(frozen=True, slots=True)
class HangUpOrder:
    """`unanswered`: an inbound call is refused instead of being answered and ended."""

    unanswered: bool = False


Verb = Say | Pause | StreamOrder | Talk | Forward | Redirect | HangUpOrder


class Wire(ABC):
    """Most carriers sign no sockets, report no streams, and receive no refusals but by a document."""

    statuses: ClassVar[Mapping[str, str]] = STATUSES
    end_statuses: ClassVar[Mapping[EndReason, str]] = END_STATUSES

    def status_of(self, call: "SimulatedCall") -> str:
        return self.end_statuses[call.reason] if call.reason else self.statuses[call.state]

    @abstractmethod
    def new_call_id(self) -> str: ...

    @abstractmethod
    def letters(self, call: "SimulatedCall", event: Event) -> Sequence[Letter]:
        """The signed webhooks of an event, by the present state of the call."""

    def stream_letters(
        self, call: "SimulatedCall", stream: StreamOrder, event: StreamEvent
    ) -> Sequence[Letter]:
        """The signed webhooks about a stream, where the document asks for them and the carrier has them."""
        return ()

    @abstractmethod
    def question(self, call: "SimulatedCall", url: str, failed_url: str = "") -> Letter:
        """The signed request for the call's document. `failed_url` gave none, and this is the fallback."""

    def is_refusal(self, status: int) -> bool:
        """Whether a status is the carrier's way to receive a refusal: Exotel's 503."""
        return False

    @abstractmethod
    def read_document(self, body: bytes) -> Sequence[Verb]:
        """The verbs of the document; ValueError if it cannot be read."""

    def stream_headers(self, call: "SimulatedCall", url: str) -> Mapping[str, str]:
        """The headers that sign a media socket's handshake."""
        return {}

    def frames(self, call: "SimulatedCall", stream: StreamOrder) -> "Frames | None":
        """None: the carrier opens no socket to such a URL."""
        return None

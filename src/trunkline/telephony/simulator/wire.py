"""What a call needs of the carrier's language it was ordered in. One wire per carrier; the life of a call has none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from trunkline.telephony.carrier import Direction
from trunkline.telephony.simulator.post import Outgoing
from trunkline.telephony.simulator.retries import WebhookRetryRule
from trunkline.value import Value

if TYPE_CHECKING:
    from trunkline.telephony.simulator.calls import SimulatedCall

Event = Literal["initiated", "ringing", "answered", "ended"]
# `failed`: it could not be opened, or broke.
StreamEvent = Literal["started", "stopped", "failed"]


class CreateRequest(Value, frozen=True):
    """A create request, read; or a call that rings at one of our numbers."""

    to: str
    from_: str
    answer_url: str = ""
    inline_document: bytes = b""
    # Asked when a URL gave no document.
    fallback_url: str = ""
    answer_method: str = "POST"
    status_method: str = "POST"
    # Where each event is told. An event that is missing is not.
    event_urls: Mapping[Event, str] = msgspec.field(default_factory=dict)
    machine_url: str = ""
    recording_url: str = ""
    ring_timeout_s: float = 60.0
    time_limit_s: float = 14_400.0
    machine_detection: bool = False
    attempt: str | None = None
    direction: Direction = "outbound"
    # What the order wants sent with its webhooks, and how often again.
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    hmac_secret: str = ""
    rule: WebhookRetryRule | None = None
    # What the carrier keeps beside the call and shows again: Exotel's custom field, Vapi's overrides.
    kept: Mapping[str, object] = msgspec.field(default_factory=dict)


class Letter(Value, frozen=True):
    """A webhook with the rule by which it is sent again."""

    request: Outgoing
    rule: WebhookRetryRule


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
    """The carrier's own agent talks, until somebody hangs up."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The caller is connected with somebody else, until somebody hangs up."""

    to: str


@dataclass(frozen=True, slots=True)
class Redirect:
    url: str


@dataclass(frozen=True, slots=True)
class HangUpOrder:
    """`unanswered`: a call that comes in is refused instead of being answered and ended."""

    unanswered: bool = False


Verb = Say | Pause | StreamOrder | Talk | Forward | Redirect | HangUpOrder


class Frames(Protocol):
    """The words of one media socket, numbered as the carrier numbers them."""

    def opening(self) -> Sequence[str]: ...

    def media(self, elapsed_ms: int) -> str: ...

    def stop(self) -> str: ...

    def heard(self, text: str) -> str | None:
        """What the carrier says to a message of the agent's: that a mark has been played."""
        ...


class Wire(Protocol):
    def new_call_id(self) -> str: ...

    def letters(self, call: "SimulatedCall", event: Event) -> Sequence[Letter]:
        """The signed webhooks of an event, as the call is now."""
        ...

    def stream_letters(
        self, call: "SimulatedCall", stream: StreamOrder, event: StreamEvent
    ) -> Sequence[Letter]:
        """The signed webhooks about a stream, where the document asks for them and the carrier has them."""
        ...

    def question(self, call: "SimulatedCall", url: str, failed_url: str = "") -> Letter:
        """The signed request for the document that says what to do with the call. `failed_url` gave none, and this is
        the fallback."""
        ...

    def is_refusal(self, status: int) -> bool:
        """Whether a status is the carrier's own way of being told that there is nobody: Exotel's 503."""
        ...

    def read_document(self, body: bytes) -> Sequence[Verb]:
        """What the document asks for; ValueError if it cannot be read."""
        ...

    def stream_headers(self, call: "SimulatedCall", url: str) -> Mapping[str, str]:
        """What proves a media socket's handshake."""
        ...

    def frames(self, call: "SimulatedCall", stream: StreamOrder) -> Frames | None:
        """None: the carrier opens no socket to such a URL."""
        ...

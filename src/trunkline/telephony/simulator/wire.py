"""What a call needs of the carrier's language it was ordered in. One wire per carrier; the life of a call has none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from trunkline.telephony.simulator.post import Outgoing

if TYPE_CHECKING:
    from trunkline.telephony.simulator.calls import Call

Event = Literal["initiated", "ringing", "answered", "ended"]


@dataclass(frozen=True, slots=True)
class Order:
    """A create request, read."""

    to: str
    from_: str
    answer_url: str
    inline_document: bytes = b""
    answer_method: str = "POST"
    status_url: str = ""
    status_method: str = "POST"
    events: frozenset[Event] = frozenset()
    ring_timeout_s: float = 60.0
    time_limit_s: float = 14_400.0
    machine_detection: bool = False
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class Say:
    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    length_s: float


@dataclass(frozen=True, slots=True)
class Stream:
    url: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Redirect:
    url: str


@dataclass(frozen=True, slots=True)
class HangUp:
    pass


Verb = Say | Pause | Stream | Redirect | HangUp


class Wire(Protocol):
    def status_request(self, call: "Call", event: Event) -> Outgoing:
        """The signed webhook of an event, as the call is now."""
        ...

    def answer_request(self, call: "Call", url: str) -> Outgoing:
        """The signed request for the document that says what to do with the call."""
        ...

    def read_document(self, body: bytes) -> Sequence[Verb]:
        """What the document asks for; ValueError if it cannot be read."""
        ...

    def stream_headers(self, call: "Call", url: str) -> Mapping[str, str]:
        """What proves a media socket's handshake."""
        ...

"""The simulator's configuration. Every field has a default for tests."""

from dataclasses import dataclass, field
from typing import Literal

from trunkline.telephony.simulator.behaviour import Behaviour
from trunkline.telephony.simulator.faults import Faults

CarrierName = Literal["twilio", "plivo", "exotel", "vapi"]


@dataclass(frozen=True, slots=True)
class SimulatedAccount:
    """An account at a simulated carrier. Calls over `calls_per_s` wait in its queue."""

    sid: str = "AC" + "0" * 31 + "1"
    # Plivo's and Exotel's token too, and Vapi's key.
    auth_token: str = field(default="simulated-auth-token", repr=False)
    calls_per_s: float = 1000.0
    carrier: CarrierName = "twilio"
    # Exotel's user name beside its token.
    api_key: str = "simulated-api-key"
    # Concurrent calls and requests per minute; more are refused.
    max_concurrent: int | None = None
    requests_per_min: int | None = None
    # Its list of numbers. It accepts calls from other numbers too, so they need not be configured here.
    numbers: tuple[str, ...] = ("+14155550100", "+14155550101")

    def __post_init__(self) -> None:
        if self.calls_per_s <= 0:
            raise ValueError("calls_per_s is above 0")


# One account at each. Plivo's own SDK requires 20 characters that begin with MA.
ACCOUNTS: tuple[SimulatedAccount, ...] = (
    SimulatedAccount(),
    SimulatedAccount(sid="MA" + "0" * 17 + "1", carrier="plivo"),
    SimulatedAccount(sid="simulated1", carrier="exotel"),
    SimulatedAccount(sid="00000000-0000-4000-8000-000000000001", carrier="vapi"),
)


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    host: str = "127.0.0.1"
    port: int = 0
    accounts: tuple[SimulatedAccount, ...] = ACCOUNTS
    seed: int = 1
    # Real seconds per simulated second: 0.02 makes a call of 50 s last one.
    time_scale: float = 1.0
    behaviour: Behaviour = field(default_factory=Behaviour)
    faults: Faults = field(default_factory=Faults)
    # Calls that an account may have waiting; the next one is refused (22005).
    queue_max: int = 100_000
    # Real seconds between media messages on a stream. A true carrier sends one every 0.02 s.
    media_interval_s: float = 0.5
    # Simulated seconds between dialling and ringing.
    setup_s: float = 0.5
    # Real seconds; a media stream that did not open by then has failed.
    stream_connect_timeout_s: float = 5.0
    # Real seconds for which a person without an agent stays before their talk time begins to count, so that the speed
    # of the machine does not decide whether a short call reaches an agent.
    patience_s: float = 10.0

    def __post_init__(self) -> None:
        if self.time_scale <= 0 or self.media_interval_s <= 0:
            raise ValueError("time_scale and media_interval_s are above 0")
        if self.patience_s < 0:
            raise ValueError("patience_s is not negative")

    def account(self, carrier: str) -> SimulatedAccount:
        """The first account at this carrier."""
        return next(account for account in self.accounts if account.carrier == carrier)

"""A fake carrier: the simulator in Twilio's dialect, with the settings that point a platform at it."""

from collections.abc import Mapping, Sequence
from types import TracebackType

from trunkline.telephony.simulator import Behaviour, Simulator, SimulatorConfig
from trunkline.telephony.simulator.ledger import Dial, DoubleDial


class FakeCarrier:
    """`async with FakeCarrier() as carrier:` it listens on a free port of 127.0.0.1 until the block ends.

    A simulated second lasts `time_scale` seconds. The number decides the course of a call, for other numbers
    `behaviour` and `seed` do: docs/reference/simulator.md.
    """

    def __init__(
        self, *, time_scale: float = 0.005, behaviour: Behaviour | None = None, seed: int = 1
    ) -> None:
        self._simulator = Simulator(
            SimulatorConfig(time_scale=time_scale, behaviour=behaviour or Behaviour(), seed=seed)
        )

    @property
    def base_url(self) -> str:
        return self._simulator.base_url

    @property
    def settings(self) -> Mapping[str, str]:
        """The platform's settings of the account at this carrier."""
        account = self._simulator.config.account("twilio")
        return {
            "TWILIO_BASE_URL": self.base_url,
            "TWILIO_ACCOUNT_SID": account.sid,
            "TWILIO_AUTH_TOKEN": account.auth_token,
            "TWILIO_CALLS_PER_SECOND": str(account.calls_per_s),
        }

    @property
    def dials(self) -> Sequence[Dial]:
        """Every dialled call, in order. No code of the platform writes here."""
        return tuple(self._simulator.ledger.dials)

    def double_dials(self) -> Sequence[DoubleDial]:
        """Attempts that were dialled twice, and people who were called twice at the same time."""
        return self._simulator.ledger.double_dials()

    async def __aenter__(self) -> "FakeCarrier":
        await self._simulator.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._simulator.stop()

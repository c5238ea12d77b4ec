"""What every part stands on."""

from dataclasses import dataclass, field

from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.settings import Settings
from trunkline.store.database import Database
from trunkline.telephony.carrier import AnswerFallback

# The name under which one of many processes does what only one may do.
LEADER = "control"


@dataclass(frozen=True, slots=True)
class Ground:
    settings: Settings
    database: Database
    bus: Bus
    clock: Clock
    public_base_url: str
    # Connections that only answers to carriers use: a person who picked up does not wait behind a report.
    answers_database: Database
    secrets: list[str] = field(repr=False)

    @property
    def fallback_base_url(self) -> str:
        return self.settings.http.fallback_base_url or self.public_base_url

    @property
    def answer_fallback(self) -> AnswerFallback:
        carrier = self.settings.carrier
        return AnswerFallback(carrier.answer_fallback_url or "", carrier.answer_fallback_message)

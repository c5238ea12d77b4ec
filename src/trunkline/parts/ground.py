"""What every part stands on."""

from dataclasses import dataclass, field

from trunkline.bus.connection import Bus
from trunkline.clock import Clock
from trunkline.settings import Settings
from trunkline.store.database import Database

# The name under which one of many processes does what only one may do.
LEADER = "control"


@dataclass(frozen=True, slots=True)
class Ground:
    settings: Settings
    database: Database
    bus: Bus
    clock: Clock
    public_base_url: str
    secrets: list[str] = field(repr=False)

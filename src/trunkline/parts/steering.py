"""What steers it: stops, flags, and whether this is the database that it should be."""

from trunkline.control.controls import Controls
from trunkline.control.flags import FlagBoard
from trunkline.control.guardian import Guardian
from trunkline.control.presence import Presence
from trunkline.control.provider import Flags
from trunkline.control.refresh import ControlRefresh
from trunkline.dispatch.rollout import Rollout
from trunkline.loops.base import Loop
from trunkline.parts.ground import LEADER, Ground


class Steering:
    def __init__(self, ground: Ground):
        settings, database, clock = ground.settings, ground.database, ground.clock
        board = FlagBoard()
        self.controls = Controls(clock)
        self.flags = Flags(board, settings.control.flag_provider)
        self.rollout = Rollout(self.flags)
        self.guardian = Guardian(database, ground.bus, clock, settings.control.restore_guard)
        self.presence = Presence(database, clock, settings.identity, settings.roles, LEADER)
        # Of every process, whatever its roles.
        self.loops: list[Loop] = [
            ControlRefresh(database, self.guardian, self.controls, board),
            self.presence,
        ]

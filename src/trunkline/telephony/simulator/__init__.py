"""A carrier on the wire, for demos and tests: REST API, signed webhooks, media streams, faults and a ledger.

`calls` has the states of a call, `ledger` what was really dialled; no code of the platform writes there.
"""

from trunkline.telephony.simulator.behaviour import Behaviour
from trunkline.telephony.simulator.config import SimulatedAccount, SimulatorConfig
from trunkline.telephony.simulator.faults import Faults
from trunkline.telephony.simulator.server import Simulator

__all__ = ["Behaviour", "Faults", "SimulatedAccount", "Simulator", "SimulatorConfig"]

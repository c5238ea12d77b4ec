"""The simulated carrier as a process: `python -m bench._carrier '<a SimulatorConfig as JSON>'`."""

import sys

import msgspec
import uvloop

from trunkline.telephony.simulator import SimulatorConfig
from trunkline.telephony.simulator.__main__ import serve

if __name__ == "__main__":
    uvloop.run(serve(msgspec.json.decode(sys.argv[1], type=SimulatorConfig)))

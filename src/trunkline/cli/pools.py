"""`trunkline pools`: the numbers that a lead may be called from, and their overflow pools.

trunkline pools create acme-main --merchant acme-store --overflow shared --after 5
trunkline pools change acme-main --region-affinity
"""

import typer

from trunkline.cli.control import Values, connect
from trunkline.cli.resource import Resource
from trunkline.schema.numbers import NewPool, Pool, PoolChange

app = typer.Typer(help="Number pools.", no_args_is_help=True)
app.callback()(connect)


def _with_whole_overflow(values: Values) -> Values:
    """Both fields change together: without a pool there is no time."""
    return {"overflow_after_s": None} | values if "overflow_pool" in values else values


POOLS = Resource(
    "pools",
    Pool,
    {
        "overflow_pool": ("overflow", "The pool to use when this one has no channel; `none`: no other."),
        "overflow_after_s": ("after", "After how many seconds."),
    },
)
POOLS.add_list(app, "Pools, by id.")
POOLS.add_show(app, "One pool.")
POOLS.add_create(app, NewPool, "Create a pool, of a merchant, of a reseller, or of the platform.")
POOLS.add_change(app, PoolChange, "Change a pool.", _with_whole_overflow)
POOLS.add_remove(app, "Remove a pool. Refused while anything names it.")

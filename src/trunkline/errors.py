"""The root of every exception that Trunkline raises on purpose.

    TrunklineError
    ├── SettingsError       a variable is wrong                     (settings)
    ├── EmbeddedError       an embedded engine cannot run           (embedded)
    ├── StoreUnavailable    Postgres cannot be reached              (store)
    │   └── PoolEmpty       it can, but our own connections are all in use
    ├── MigrationError      the schema is not what the code expects (store)
    ├── NotInTransaction    what must be one with the caller's change would be committed by itself
    └── BusUnavailable      Valkey cannot be reached                (bus)
        └── ProjectionLost      it can, but what it knew is gone

Expected outcomes are values, not exceptions: see `telephony.carrier.PlaceResult` for the shape we follow.
"""


class TrunklineError(Exception):
    """A problem whose message is written for the operator: one line that says what to do."""


class EmbeddedError(TrunklineError):
    """An embedded engine cannot run. The message is one line that says what is wrong and what to do."""


class StoreUnavailable(TrunklineError):
    """Postgres cannot be reached. Nothing was promised, nothing is lost: try again."""


class PoolEmpty(StoreUnavailable, TimeoutError):
    """Every connection of a pool is in use, and none came back in time. Postgres has nothing to do with it."""


class MigrationError(TrunklineError):
    """The schema and the code do not fit together."""


class NotInTransaction(TrunklineError):
    """A connection that is in no transaction: what was to be one with it would be committed by itself. Or it is none
    that is known. Nothing was written."""


class BusUnavailable(TrunklineError):
    """Valkey cannot be reached or did not answer in time. A write may or may not have happened."""


class ProjectionLost(BusUnavailable):
    """Valkey answers, but its projection is not the one we know. Nothing was written; a rebuild follows."""

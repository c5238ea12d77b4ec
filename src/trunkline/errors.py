"""The root of every exception that Trunkline raises on purpose.

    TrunklineError
    ├── SettingsError       a variable is wrong                     (settings)
    ├── EmbeddedError       an embedded engine cannot run           (embedded)
    ├── StoreUnavailable    Postgres cannot be reached              (store)
    │   └── PoolEmpty       it can, but all connections of the pool are in use
    ├── MigrationError      the schema is not what the code expects (store)
    ├── NotInTransaction    a job or event would not be committed with the caller's change
    └── BusUnavailable      Valkey cannot be reached                (bus)
        └── ProjectionLost      it can, but its projection is gone

Expected outcomes are values, not exceptions: see `telephony.carrier.PlaceResult` for the model.
"""


class TrunklineError(Exception):
    """A problem whose message is written for the operator: one line that says what to do."""


class EmbeddedError(TrunklineError):
    """An embedded engine cannot run. The message is one line that says what is wrong and what to do."""


class StoreUnavailable(TrunklineError):
    """Postgres cannot be reached. Nothing was written; the caller may retry."""


class PoolEmpty(StoreUnavailable, TimeoutError):
    """Every connection of a pool is in use, and none was released in time. Postgres itself is not at fault."""


class MigrationError(TrunklineError):
    """The schema and the code do not fit together."""


class NotInTransaction(TrunklineError):
    """The connection is in no transaction, so a job or event would be committed without the caller's change; or its
    driver is not supported. Nothing was written."""


class BusUnavailable(TrunklineError):
    """Valkey cannot be reached or did not answer in time. A write may or may not have happened."""


class ProjectionLost(BusUnavailable):
    """Valkey answers, but its projection is another one. Nothing was written; a rebuild follows."""

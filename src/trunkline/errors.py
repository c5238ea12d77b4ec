"""The root of every exception that Trunkline raises on purpose.

    TrunklineError
    ├── SettingsError       a variable is wrong                     (settings)
    ├── EmbeddedError       an embedded engine cannot run           (embedded)
    ├── StoreUnavailable    Postgres cannot be reached              (store)
    ├── MigrationError      the schema is not what the code expects (store)
    └── BusUnavailable      Valkey cannot be reached                (bus)
        └── MemoryLost      it can, but what it knew is gone

Expected outcomes are values, not exceptions: see `telephony.carrier.PlaceResult` for the shape we follow.
"""


class TrunklineError(Exception):
    """A problem whose message is written for the operator: one line that says what to do."""


class StoreUnavailable(TrunklineError):
    """Postgres cannot be reached. Nothing was promised, nothing is lost: try again."""


class MigrationError(TrunklineError):
    """The schema and the code do not fit together."""


class BusUnavailable(TrunklineError):
    """Valkey cannot be reached or did not answer in time. A write may or may not have happened."""


class MemoryLost(BusUnavailable):
    """Valkey answers, but its memory is not the one we know. Nothing was written; a rebuild follows."""

"""Every key in Valkey, built here and nowhere else.

All keys of a dispatch domain share one hash tag, so that one script may touch them all, on a cluster too.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one dispatch domain, `tl:{main}:…`."""

    domain: str = "main"
    prefix: str = "tl"

    def _key(self, *parts: str) -> str:
        return ":".join((f"{self.prefix}:{{{self.domain}}}", *parts))

    @property
    def base(self) -> str:
        """What scripts put before the keys they compose themselves."""
        return self._key("")

    @property
    def probe(self) -> str:
        return self._key("probe")

    @property
    def pools(self) -> str:
        """SET of the pools that have numbers."""
        return self._key("pools")

    @property
    def numbers(self) -> str:
        """HASH number id -> max_channels."""
        return self._key("numbers")

    def pool_numbers(self, pool_id: str) -> str:
        """SET of the number ids of a pool."""
        return self._key("pool", pool_id, "numbers")

    def schedule(self, pool_id: str) -> str:
        """ZSET lead id -> due time in ms."""
        return self._key("pool", pool_id, "schedule")

    @property
    def leads(self) -> str:
        """HASH lead id -> `version|pool|place`, for the leads that Valkey knows."""
        return self._key("leads")

    def channels(self, number_id: str) -> str:
        """HASH channel number -> attempt id."""
        return self._key("channels", number_id)

    @property
    def holders(self) -> str:
        """HASH attempt id -> `number|channel|lead|pool|version|due_ms|granted_ms`."""
        return self._key("holders")

    @property
    def bell(self) -> str:
        """LIST that dialers wait on."""
        return self._key("bell")

    def nudges(self, kind: str) -> str:
        """STREAM of mailbox keys that have new events."""
        return self._key("mailbox", kind, "nudges")

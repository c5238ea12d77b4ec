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
    def probe(self) -> str:
        return self._key("probe")

    @property
    def epoch(self) -> str:
        """HASH `run_id`, `number`, `building`: in which life of the server, and under which number, memory counts."""
        return self._key("epoch")

    def memory(self, epoch: int) -> str:
        """What scripts put before the keys of dispatch. Every epoch has keys of its own, so that a rebuild touches
        nothing that is live. `bus/lua/includes/` says what they are."""
        return self._key(f"e{epoch}", "")

    @property
    def any_memory(self) -> str:
        """A pattern for the keys of all epochs."""
        return self._key("e[0-9]*")

    @property
    def witness(self) -> str:
        """STRING `installation beat`: how far Postgres had come when it was last heard of."""
        return self._key("witness")

    @property
    def bell(self) -> str:
        """LIST that dialers wait on."""
        return self._key("bell")

    def nudges(self, kind: str) -> str:
        """STREAM of mailbox keys that have new events."""
        return self._key("mailbox", kind, "nudges")

"""Every key in Valkey that Python names, built here and nowhere else. Scripts build theirs in `lua/includes/keys.lua`.

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
        """HASH `run_id`, `number`, `building`: the server's run that it is valid in, and its number."""
        return self._key("epoch")

    def projection(self, epoch: int) -> "Projection":
        """The keys of dispatch. Every epoch has keys of its own, so that a rebuild touches nothing that is live."""
        return Projection(self._key(f"e{epoch}", ""))

    @property
    def all_projections(self) -> str:
        """A pattern for the keys of all epochs."""
        return self._key("e[0-9]*")

    @property
    def witness(self) -> str:
        """STRING `installation beat`: Postgres's last beat that the leader saw."""
        return self._key("witness")

    @property
    def outage(self) -> str:
        """STRING: the id under which processes report an outage of Postgres."""
        return self._key("outage")

    @property
    def outage_announced_by(self) -> str:
        """STRING: the process that reports it."""
        return self._key("outage", "told_by")

    @property
    def outage_announced(self) -> str:
        """STRING: the outage that was delivered to the webhook."""
        return self._key("outage", "told")

    @property
    def dialer_wakeups(self) -> str:
        """LIST that dialers wait on."""
        return self._key("dialer_wakeups")

    def mailbox_wakeups(self, kind: str) -> str:
        """STREAM of mailbox keys that have new events."""
        return self._key("mailbox", kind, "wakeups")


class Projection(str):
    """The prefix of the keys of one epoch's projection of dispatch, and the keys that Python reads too.
    `lua/includes/keys.lua` lists them all."""

    __slots__ = ()

    @property
    def leads(self) -> str:
        """HASH lead -> its record."""
        return f"{self}leads"

    @property
    def partial(self) -> str:
        """SET of the flows that have more leads in Postgres than in Valkey."""
        return f"{self}partial"

    @property
    def moves(self) -> str:
        """ZSET lead -> ms when it may go to its next pool."""
        return f"{self}moves"

    @property
    def holders(self) -> str:
        """HASH attempt -> the channel that it holds, and for which lead."""
        return f"{self}holders"

    @property
    def live(self) -> str:
        """HASH merchant or campaign -> how many calls it has."""
        return f"{self}live"

    @property
    def stops(self) -> str:
        """HASH stopped subject -> the reason."""
        return f"{self}stops"

    def queue(self, flow: str, place: str) -> str:
        """ZSET of the leads of a flow that are scheduled (`s`) or wait for their turn (`w`)."""
        return f"{self}flow:{flow}:{place}"


@dataclass(frozen=True, slots=True)
class RouterKeys:
    """The router's keys. Its scripts compose them; `docs/explanation/router.md` lists them.

    The prefix is `voice`; on a cluster it is `{voice}`, so that one script may touch all of the router's keys.
    """

    prefix: str = "voice"

    @property
    def base(self) -> str:
        """The prefix of the keys that scripts compose themselves."""
        return f"{self.prefix}:"

    @property
    def epoch(self) -> str:
        """HASH `run_id`, `id`, `began_ms`, `term`: the server's run that the projection is valid in, its manager."""
        return f"{self.prefix}:epoch"

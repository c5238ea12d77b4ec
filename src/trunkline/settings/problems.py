"""What can be wrong with settings, in words for the operator: which variable, what it is, what is allowed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trunkline.errors import TrunklineError
from trunkline.settings.model import Settings


@dataclass(frozen=True, slots=True)
class Problem:
    name: str
    given: str | None
    allowed: str

    def __str__(self) -> str:
        state = "is not set" if self.given is None else f"is {self.given!r}"
        return f"{self.name} {state}; allowed: {self.allowed}"


class SettingsError(TrunklineError):
    """Settings that cannot be used. Every problem is named, one per line."""

    def __init__(self, problems: Sequence[Problem]):
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Clash:
    """Values that are fine each by itself and do not fit together. The first name is the one to change."""

    names: tuple[str, ...]
    allowed: str


def clashes(settings: Settings) -> Iterator[Clash]:
    """What does not fit together."""
    database, redis, http, leader, twilio = (
        settings.database,
        settings.redis,
        settings.http,
        settings.leader,
        settings.twilio,
    )
    if http.port == http.metrics_port != 0:
        yield Clash(("METRICS_PORT", "HTTP_PORT"), "a port other than HTTP_PORT, or 0")
    if leader.renew_deadline_s >= leader.duration_s:
        yield Clash(
            ("LEADER_ELECTION_RENEW_DEADLINE", "LEADER_ELECTION_DURATION"),
            "less than LEADER_ELECTION_DURATION",
        )
    if leader.retry_period_s >= leader.renew_deadline_s:
        yield Clash(
            ("LEADER_ELECTION_RETRY_PERIOD", "LEADER_ELECTION_RENEW_DEADLINE"),
            "less than LEADER_ELECTION_RENEW_DEADLINE",
        )
    if database.direct_url and not database.url:
        yield Clash(("DATABASE_URL", "DATABASE_DIRECT_URL"), "a URL, since DATABASE_DIRECT_URL is set")
    if database.pooler == "transaction" and not database.direct_url:
        yield Clash(
            ("DATABASE_DIRECT_URL", "DATABASE_POOLER"),
            "a URL past the pooler, since DATABASE_POOLER is `transaction`",
        )
    if redis.cluster and not (redis.url or "").startswith(("redis://", "rediss://")):
        yield Clash(
            ("REDIS_URL", "REDIS_CLUSTER"), "a `redis://` or `rediss://` URL, since REDIS_CLUSTER is `true`"
        )
    if (twilio.account_sid is None) != (twilio.auth_token is None):
        missing = "TWILIO_ACCOUNT_SID" if twilio.account_sid is None else "TWILIO_AUTH_TOKEN"
        yield Clash((missing,), "set both TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN, or neither")
    if settings.carrier.ring_timeout_s > 600:
        yield Clash(("RING_TIMEOUT",), "at most 10m, the longest that carriers accept")

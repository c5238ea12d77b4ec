"""Problems of settings for the operator: the variable, its value, and what is allowed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trunkline.errors import TrunklineError
from trunkline.settings.infrastructure import Leader
from trunkline.settings.model import Settings


@dataclass(frozen=True, slots=True)
class SettingProblem:
    name: str
    given: str | None
    allowed: str

    def __str__(self) -> str:
        state = "is not set" if self.given is None else f"is {self.given!r}"
        return f"{self.name} {state}; allowed: {self.allowed}"


class SettingsError(TrunklineError):
    """Settings that cannot be used. Every problem is named, one per line."""

    def __init__(self, problems: Sequence[SettingProblem]):
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Clash:
    """Values that are valid each by itself but do not fit together. The first name is the one to change."""

    names: tuple[str, ...]
    allowed: str


def clashes(settings: Settings) -> Iterator[Clash]:
    """Values that do not fit together, or not with the carriers."""
    yield from _of_engines(settings)
    yield from _of_leadership(settings.leader)
    yield from _of_carriers(settings)
    if settings.dispatch.ahead_s > 0.1:
        yield Clash(("DIAL_AHEAD",), "at most `100ms`: what waits longer may not be wanted any more")
    if settings.jobs.renew_s * 2 > settings.jobs.lease_s:
        yield Clash(("JOB_LEASE_RENEW_INTERVAL", "JOB_LEASE"), "at most half of JOB_LEASE")
    if settings.http.port == settings.http.metrics_port != 0:
        yield Clash(("METRICS_PORT", "HTTP_PORT"), "a port other than HTTP_PORT, or 0")


def _of_engines(settings: Settings) -> Iterator[Clash]:
    database, redis = settings.database, settings.redis
    if database.direct_url and not database.url:
        yield Clash(("DATABASE_URL", "DATABASE_DIRECT_URL"), "a URL, since DATABASE_DIRECT_URL is set")
    if database.pooler == "transaction" and not database.direct_url:
        names = ("DATABASE_DIRECT_URL", "DATABASE_POOLER")
        yield Clash(names, "a URL past the pooler, since DATABASE_POOLER is `transaction`")
    if redis.cluster and not (redis.url or "").startswith(("redis://", "rediss://")):
        names = ("REDIS_URL", "REDIS_CLUSTER")
        yield Clash(names, "a `redis://` or `rediss://` URL, since REDIS_CLUSTER is `true`")


def _of_leadership(leader: Leader) -> Iterator[Clash]:
    """A leader has to stop before its lease ends, and to retry more than once before it stops."""
    if leader.renew_deadline_s >= leader.duration_s:
        names = ("LEADER_ELECTION_RENEW_DEADLINE", "LEADER_ELECTION_DURATION")
        yield Clash(names, "less than LEADER_ELECTION_DURATION")
    if leader.retry_period_s >= leader.renew_deadline_s:
        names = ("LEADER_ELECTION_RETRY_PERIOD", "LEADER_ELECTION_RENEW_DEADLINE")
        yield Clash(names, "less than LEADER_ELECTION_RENEW_DEADLINE")


def _of_carriers(settings: Settings) -> Iterator[Clash]:
    carrier = settings.carrier
    for account in _accounts(settings):
        missing = [name for name, value in account.items() if value is None]
        if missing and len(missing) < len(account):
            given = [name for name, value in account.items() if value is not None]
            parts = "both of" if len(account) == 2 else "all of"
            yield Clash((*missing, *given), f"{parts} the account and what proves it, or neither")
    if not 1 <= carrier.ring_timeout_s <= 600:
        yield Clash(("RING_TIMEOUT",), "`1s` to `10m`, which is what carriers accept")
    if not 1 <= carrier.time_limit_s <= 86_400:
        yield Clash(("CALL_TIME_LIMIT",), "`1s` to `24h`, which is what carriers accept")


def _accounts(settings: Settings) -> Iterator[dict[str, object]]:
    """Variables that belong together: an account of the environment is complete, or absent."""
    twilio, plivo, exotel, vapi = settings.twilio, settings.plivo, settings.exotel, settings.vapi
    yield {"TWILIO_ACCOUNT_SID": twilio.account_sid, "TWILIO_AUTH_TOKEN": twilio.auth_token}
    yield {"PLIVO_AUTH_ID": plivo.auth_id, "PLIVO_AUTH_TOKEN": plivo.auth_token}
    yield {
        "EXOTEL_SID": exotel.sid,
        "EXOTEL_API_KEY": exotel.api_key,
        "EXOTEL_API_TOKEN": exotel.api_token,
    }
    yield {"VAPI_API_KEY": vapi.api_key, "VAPI_WEBHOOK_SECRET": vapi.webhook_secret}

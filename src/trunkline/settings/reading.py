"""Reads settings from the environment, checks all of them, and reports all problems at once: the variable, its value,
and what is allowed."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from trunkline.errors import TrunklineError
from trunkline.settings.model import GivenValue, Settings
from trunkline.settings.spellings import is_service_link, spellings, warnings_about
from trunkline.settings.variables import variables_of

VARIABLES = variables_of(Settings)


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


def load_settings(environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
    """Read the settings. Overrides go by the variables' names, `HTTP_PORT=0`, and win; None does not override."""
    environ = os.environ if environ is None else environ
    read = _read(environ)
    given = _given(read, overrides)
    settings, problems = _checked(given, _contradictions(read))
    if problems:
        raise SettingsError(problems)
    settings._given = {name: each._replace(value=_text(each.value)) for name, each in given.items()}
    settings._warnings = tuple(warnings_about(environ, VARIABLES))
    return settings


def _read(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The values of each variable, by spelling. An empty variable counts as unset: manifests and shells often cannot
    omit one."""
    read = {
        name: {
            spelling: value
            for spelling in spellings(name)
            if (value := environ.get(spelling, "").strip()) and not is_service_link(spelling, value)
        }
        for name in VARIABLES
    }
    return {name: found for name, found in read.items() if found}


def _contradictions(read: Mapping[str, Mapping[str, str]]) -> dict[str, SettingProblem]:
    """Variables with two spellings and two values: only the operator can resolve them."""
    problems: dict[str, SettingProblem] = {}
    for name, found in read.items():
        if len(set(found.values())) > 1:
            (first, value), (second, other) = found.items()
            masked = VARIABLES[name].masked
            allowed = f"the value of {second}, which is {masked(other)!r}, or only one of the two"
            problems[name] = SettingProblem(first, masked(value), allowed)
    return problems


def _given(read: Mapping[str, Mapping[str, str]], overrides: Mapping[str, object]) -> dict[str, GivenValue]:
    unknown = overrides.keys() - VARIABLES.keys()
    if unknown:
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
    return {
        **{name: GivenValue("environment", *next(iter(found.items()))) for name, found in read.items()},
        **{
            name: GivenValue("argument", name, value)
            for name, value in overrides.items()
            if value is not None
        },
    }


def _checked(
    given: dict[str, GivenValue], contradictions: Mapping[str, SettingProblem]
) -> tuple[Settings, list[SettingProblem]]:
    """Clashes are searched among the remaining values without the wrong ones, so that both kinds are reported."""
    invalid: set[str] = set()
    try:
        _built(given)
    except ValidationError as error:
        invalid = VARIABLES.keys() & {part for problem in error.errors() for part in problem["loc"]}
    wrong = [name for name in VARIABLES if name in contradictions or name in invalid]
    settings = _built({name: value for name, value in given.items() if name not in wrong})
    problems = [contradictions.get(name) or _problem(name, given, VARIABLES[name].allowed) for name in wrong]
    fitting = (clash for clash in clashes(settings) if not any(name in wrong for name in clash.names))
    return settings, problems + [_problem(clash.names[0], given, clash.allowed) for clash in fitting]


def _built(given: dict[str, GivenValue]) -> Settings:
    """Lay the flat names out as the groups of the model."""
    laid_out: dict[str, Any] = {}
    for name, each in given.items():
        group = VARIABLES[name].group
        (laid_out.setdefault(group, {}) if group else laid_out)[name] = each.value
    return Settings.model_validate(laid_out)


def _problem(name: str, given: dict[str, GivenValue], allowed: str) -> SettingProblem:
    """It names the variable in the operator's spelling."""
    _, spelling, value = given.get(name, GivenValue("default", name, VARIABLES[name].default))
    return SettingProblem(spelling, VARIABLES[name].masked(_text(value)) or None, allowed)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class Clash(NamedTuple):
    """Values that are valid each by itself but do not fit together. The first name is the one to change."""

    names: tuple[str, ...]
    allowed: str


def clashes(settings: Settings) -> Iterator[Clash]:
    """Values that do not fit together, or not with the carriers."""
    database, redis, http, leader = settings.database, settings.redis, settings.http, settings.leader
    carrier, jobs = settings.carrier, settings.jobs
    if database.direct_url and not database.url:
        yield Clash(("DATABASE_URL", "DATABASE_DIRECT_URL"), "a URL, since DATABASE_DIRECT_URL is set")
    if database.pooler == "transaction" and not database.direct_url:
        names = ("DATABASE_DIRECT_URL", "DATABASE_POOLER")
        yield Clash(names, "a URL past the pooler, since DATABASE_POOLER is `transaction`")
    if redis.cluster and not (redis.url or "").startswith(("redis://", "rediss://")):
        names = ("REDIS_URL", "REDIS_CLUSTER")
        yield Clash(names, "a `redis://` or `rediss://` URL, since REDIS_CLUSTER is `true`")
    # A leader has to stop before its lease ends, and to retry more than once before it stops.
    if leader.renew_deadline_s >= leader.duration_s:
        names = ("LEADER_ELECTION_RENEW_DEADLINE", "LEADER_ELECTION_DURATION")
        yield Clash(names, "less than LEADER_ELECTION_DURATION")
    if leader.retry_period_s >= leader.renew_deadline_s:
        names = ("LEADER_ELECTION_RETRY_PERIOD", "LEADER_ELECTION_RENEW_DEADLINE")
        yield Clash(names, "less than LEADER_ELECTION_RENEW_DEADLINE")
    for account in (settings.twilio, settings.plivo, settings.exotel, settings.vapi):
        missing, given = account.proof()
        if missing and given:
            parts = "both of" if len(missing) + len(given) == 2 else "all of"
            yield Clash((*missing, *given), f"{parts} the account and what proves it, or neither")
    if not 1 <= carrier.ring_timeout_s <= 600:
        yield Clash(("RING_TIMEOUT",), "`1s` to `10m`, which is what carriers accept")
    if not 1 <= carrier.time_limit_s <= 86_400:
        yield Clash(("CALL_TIME_LIMIT",), "`1s` to `24h`, which is what carriers accept")
    if settings.dispatch.ahead_s > 0.1:
        yield Clash(("DIAL_AHEAD",), "at most `100ms`: what waits longer may not be wanted any more")
    if jobs.renew_s * 2 > jobs.lease_s:
        yield Clash(("JOB_LEASE_RENEW_INTERVAL", "JOB_LEASE"), "at most half of JOB_LEASE")
    if http.port == http.metrics_port != 0:
        yield Clash(("METRICS_PORT", "HTTP_PORT"), "a port other than HTTP_PORT, or 0")

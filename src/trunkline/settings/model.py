"""All settings of the platform, in the groups `infrastructure`, `calling`, `routing` and `workers`. To add one, add a
field to its group; `python -m trunkline.settings.document` documents it.

A field has all properties of its variable: the name in the environment, the default, the meaning, and by its type the
allowed values. Attributes carry their unit (`read_timeout_s`); the variable has the name that operators use.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, PrivateAttr

from trunkline.settings.calling import (
    CarrierSettings,
    DispatchSettings,
    ExotelSettings,
    PlivoSettings,
    TwilioSettings,
    VapiSettings,
)
from trunkline.settings.infrastructure import (
    DatabaseSettings,
    Http,
    Leader,
    Log,
    Redis,
    Spans,
    host_and_process,
)
from trunkline.settings.routing import Router
from trunkline.settings.values import Allowed, Folder, LongSecret, Name, SecretKeys, Text, split_list
from trunkline.settings.variables import Group, Rank, env, operator_env, variables_of
from trunkline.settings.workers import ControlSettings, JobSettings, MailboxSettings, Reminders

Source = Literal["default", "environment", "argument"]
Role = Literal["api", "dispatcher", "mailbox", "jobs", "router", "control"]
ROLES: tuple[Role, ...] = ("api", "dispatcher", "mailbox", "jobs", "router", "control")


class SettingRow(NamedTuple):
    """A setting as `trunkline config` shows it. `given_as`: its name in the environment, if it is set there."""

    name: str
    value: str
    default: str
    meaning: str
    source: Source
    rank: Rank
    given_as: str | None


class GivenValue(NamedTuple):
    """A value that is not the default, and the spelling of the variable under which it was given."""

    source: Source
    spelling: str
    value: object


class Settings(Group):
    """All settings. `load_settings` makes one, at the start of a process."""

    roles: Annotated[
        tuple[Role, ...],
        BeforeValidator(lambda value: ROLES if value == "all" else split_list(value)),
        Field(min_length=1),
        Allowed(f"`all`, or some of {', '.join(f'`{role}`' for role in ROLES)}, with commas between"),
    ] = operator_env("TRUNKLINE_ROLES", "all", "The roles of this process.")
    data_dir: Folder = operator_env(
        "TRUNKLINE_DATA_DIR", ".trunkline", "Folder of the embedded engines and generated keys."
    )
    domain: Name = operator_env(
        "TRUNKLINE_DOMAIN", "main", "Dispatch domain: what shares numbers and limits shares a domain."
    )
    identity: Text = env(
        "POD_NAME", host_and_process, "Name of this process among its peers, and of the leader."
    )
    secret_keys: SecretKeys = operator_env(
        "TRUNKLINE_SECRET_KEY",
        "",
        "Encrypts credentials and signs URLs, the same in every process. Unset, one is stored in the data folder.",
    )
    admin_key: LongSecret | None = operator_env(
        "TRUNKLINE_ADMIN_KEY",
        None,
        "The first API key, with the scope `admin`. Unset, one is stored in the data folder.",
    )
    database: DatabaseSettings = DatabaseSettings()
    redis: Redis = Redis()
    http: Http = Http()
    log: Log = Log()
    leader: Leader = Leader()
    dispatch: DispatchSettings = DispatchSettings()
    carrier: CarrierSettings = CarrierSettings()
    twilio: TwilioSettings = TwilioSettings()
    plivo: PlivoSettings = PlivoSettings()
    exotel: ExotelSettings = ExotelSettings()
    vapi: VapiSettings = VapiSettings()
    router: Router = Router()
    jobs: JobSettings = JobSettings()
    mailboxes: MailboxSettings = MailboxSettings()
    reminders: Reminders = Reminders()
    control: ControlSettings = ControlSettings()
    spans: Spans = Spans()

    _given: dict[str, GivenValue] = PrivateAttr(default_factory=dict)
    _warnings: tuple[str, ...] = PrivateAttr(default=())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Variables that look like mistakes, to be logged once logging is configured."""
        return self._warnings

    def describe(self) -> Iterator[SettingRow]:
        """Every setting with its value, secrets masked."""
        for variable in variables_of(type(self)).values():
            given = self._given.get(variable.name, GivenValue("default", variable.name, variable.default))
            yield SettingRow(
                name=variable.name,
                value=variable.masked(given.value),
                default=variable.default,
                meaning=variable.meaning,
                source=given.source,
                rank=variable.rank,
                given_as=given.spelling if given.source == "environment" else None,
            )

    @property
    def answers_calls(self) -> bool:
        """Whether carriers, or other users of the router, request pods from this process."""
        return not {"api", "router"}.isdisjoint(self.roles)

    @property
    def router_key_prefix(self) -> str:
        """A script on a cluster may only use keys of one slot, which the braces select."""
        prefix = self.router.key_prefix
        return f"{{{prefix}}}" if self.redis.cluster and "{" not in prefix else prefix

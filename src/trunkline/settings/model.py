"""Every setting of the platform. To add one, add a field here; `python -m trunkline.settings.document` documents it.

A field says everything about its variable: the name in the environment, the default, the meaning, and by its type what
is allowed. Attributes carry their unit (`read_timeout_s`); the variable keeps the name that operators know.
"""

import os
import socket
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from trunkline.settings.tiers import Tiers, parse_tiers
from trunkline.settings.values import (
    Allowed,
    Folder,
    HttpUrl,
    LongSecret,
    Modules,
    Name,
    Networks,
    Port,
    PostgresUrl,
    Rate,
    RedisUrl,
    Seconds,
    Secret,
    SecretKeys,
    SecretUrl,
    SocketUrl,
    Switch,
    Text,
    TierText,
    lower,
    parse_duration_s,
    split_list,
)
from trunkline.settings.variables import variables_of

Source = Literal["default", "environment", "argument"]
Role = Literal["api", "dispatcher", "mailbox", "jobs", "router", "control"]
ROLES: tuple[Role, ...] = ("api", "dispatcher", "mailbox", "jobs", "router", "control")


def env(name: str, default: object, meaning: str, **limits: Any) -> Any:
    """A field that is read from the variable `name`. Its default is written as an operator would write it."""
    value: dict[str, Any] = {"default_factory" if callable(default) else "default": default}
    return Field(validation_alias=name, description=meaning, **value, **limits)


def host_and_process() -> str:
    """`<host>-<process id>`"""
    return f"{socket.gethostname()}-{os.getpid()}"


class Group(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        validate_by_alias=True,
        validate_by_name=True,
    )


class Database(Group):
    """Postgres, the truth."""

    url: PostgresUrl | None = env(
        "DATABASE_URL",
        None,
        "Postgres to use. Unset, an embedded one is started in the data folder.",
        repr=False,
    )
    direct_url: PostgresUrl | None = env(
        "DATABASE_DIRECT_URL",
        None,
        "The same database past any pooler, for LISTEN and for migrations. Unset, DATABASE_URL is used.",
        repr=False,
    )
    pool_size: int = env(
        "DATABASE_POOL_SIZE", 10, "Connections that one process opens at most.", ge=1, le=1000
    )
    pooler: Literal["none", "transaction"] = env(
        "DATABASE_POOLER",
        "none",
        "Whether DATABASE_URL leads to a pooler that hands out connections by transaction.",
    )

    @property
    def session_url(self) -> str | None:
        """Where a connection keeps its session: LISTEN, migrations."""
        return self.direct_url or self.url


class Redis(Group):
    """Valkey or Redis, which makes it fast and may be lost."""

    url: RedisUrl | None = env(
        "REDIS_URL",
        None,
        "Valkey or Redis to use. Unset, an embedded one is started in the data folder.",
        repr=False,
    )
    cluster: Switch = env("REDIS_CLUSTER", "false", "Whether REDIS_URL is a node of a cluster.")
    pool_size: int = env(
        "REDIS_POOL_SIZE",
        10,
        "Connections for plain commands that one process opens at most, and as many that wait; one of each beside.",
        ge=1,
        le=1000,
    )
    min_idle: int = env(
        "REDIS_MIN_IDLE_CONN",
        5,
        "Taken and not needed: one connection carries everybody's scripts.",
        ge=0,
        le=1000,
    )
    max_retries: int = env(
        "REDIS_MAX_RETRIES",
        3,
        "Taken and not needed: what may be repeated is known to who asks.",
        ge=0,
        le=100,
    )


class Http(Group):
    """The API and the metrics page."""

    host: Text = env("HTTP_HOST", "127.0.0.1", "Address to listen on. `0.0.0.0` opens it to the network.")
    port: Port = env("HTTP_PORT", 8080, "Port of the API.")
    metrics_port: Port = env("METRICS_PORT", 9090, "Port of `/metrics` alone. The API's port serves it too.")
    public_base_url: HttpUrl | None = env(
        "PUBLIC_BASE_URL",
        None,
        "Where carriers reach the API; every callback URL begins with it. Unset, the address listened on.",
    )
    trusted_proxies: Networks = env(
        "TRUSTED_PROXIES",
        "",
        "Whose `X-Forwarded-Host` and `X-Forwarded-Proto` are believed. PUBLIC_BASE_URL, if set, wins over both.",
    )
    read_timeout_s: Seconds = env("HTTP_READ_TIMEOUT", "5s", "How long a request may take to arrive.")
    write_timeout_s: Seconds = env(
        "HTTP_WRITE_TIMEOUT", "10s", "How long a client may take for each piece of a streamed answer."
    )
    shutdown_timeout_s: Seconds = env(
        "HTTP_SHUTDOWN_TIMEOUT",
        "30s",
        "How long a stopping process waits for open requests and for its own work.",
    )
    max_body_bytes: int = env(
        "HTTP_MAX_BODY_BYTES",
        1_048_576,
        "The largest request body, uploads aside.",
        ge=1024,
        le=1_073_741_824,
    )


class Log(Group):
    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = env(
        "LOG_LEVEL", "info", "Lines below this level are dropped."
    )
    format: Annotated[Literal["auto", "json", "console"], BeforeValidator(lower)] = env(
        "LOG_FORMAT", "auto", "How lines look. `auto` is `console` in a terminal and `json` elsewhere."
    )


class Leader(Group):
    """The lease under which one process of many does what only one may do."""

    enabled: Switch = env(
        "LEADER_ELECTION_ENABLED", "true", "Without election this process leads. Only for a single process."
    )
    duration_s: Seconds = env("LEADER_ELECTION_DURATION", "15s", "How long a lease holds without renewal.")
    renew_deadline_s: Seconds = env(
        "LEADER_ELECTION_RENEW_DEADLINE", "10s", "A leader that could not renew for this long stops leading."
    )
    retry_period_s: Seconds = env(
        "LEADER_ELECTION_RETRY_PERIOD", "2s", "Time between two tries to take or renew."
    )


class Dispatch(Group):
    """Pairing due leads with free channels."""

    grant_ttl_s: Seconds = env(
        "GRANT_TTL", "5s", "A grant that no attempt followed within this time goes back to the queue."
    )
    send_late_max_s: Seconds = env(
        "SEND_LATE_MAX",
        "0.5s",
        "A call that would leave later than this is not sent, and comes again.",
    )
    idle_wait_s: Seconds = env("DIALER_IDLE_WAIT", "1s", "The longest a dialer sleeps before it asks again.")
    batch_max: int = env(
        "DIALER_BATCH_SIZE", 16, "Grants that a dialer takes at most in one go.", ge=1, le=1000
    )
    fallback_starts_per_s: int = env(
        "FALLBACK_CALLS_PER_SECOND",
        5,
        "Calls that one dialer starts per second at most while Valkey is away and Postgres alone finds channels.",
        ge=1,
        le=100,
    )
    loader_jitter_max_s: Seconds = env(
        "LOADER_JITTER_MAX",
        "5s",
        "How much later than every five seconds a walk over waiting leads may begin once 100,000 of them wait.",
    )


class Carrier(Group):
    """What holds for the calls of every carrier."""

    request_timeout_s: Seconds = env(
        "CARRIER_REQUEST_TIMEOUT",
        "5s",
        "How long a carrier may take to answer. Past it the attempt is in doubt.",
    )
    ring_timeout_s: Seconds = env("RING_TIMEOUT", "30s", "How long a phone may ring, `1s` to `10m`.")
    time_limit_s: Seconds = env(
        "CALL_TIME_LIMIT", "1h", "The longest call, `1s` to `24h`. The carrier ends it then."
    )
    machine_detection: Switch = env(
        "MACHINE_DETECTION",
        "false",
        "Have the carrier tell whether a machine answered (Twilio, Plivo). It may cost extra.",
    )
    record_calls: Switch = env(
        "RECORD_CALLS",
        "false",
        "Have the carrier record calls (Twilio, Exotel) and tell where. Whether that is allowed is for you to know.",
    )


class Twilio(Group):
    base_url: HttpUrl = env("TWILIO_BASE_URL", "https://api.twilio.com", "Where Twilio's API is.")
    account_sid: Text | None = env("TWILIO_ACCOUNT_SID", None, "The account. Unset, Twilio is not used.")
    auth_token: Secret | None = env(
        "TWILIO_AUTH_TOKEN", None, "The account's token, which also signs webhooks."
    )
    starts_per_s: Rate = env(
        "TWILIO_CALLS_PER_SECOND",
        "1",
        "Calls that the account may start per second: what Twilio allows it, or less.",
    )


class Plivo(Group):
    base_url: HttpUrl = env("PLIVO_BASE_URL", "https://api.plivo.com", "Where Plivo's API is.")
    auth_id: Text | None = env("PLIVO_AUTH_ID", None, "The account. Unset, Plivo is not used.")
    auth_token: Secret | None = env(
        "PLIVO_AUTH_TOKEN", None, "The account's token, which also signs webhooks."
    )
    starts_per_s: Rate = env(
        "PLIVO_CALLS_PER_SECOND",
        "2",
        "Calls that the account may start per second: what Plivo allows it, or less.",
    )


class Exotel(Group):
    base_url: HttpUrl = env(
        "EXOTEL_BASE_URL",
        "https://api.exotel.com",
        "Where Exotel's API is; for accounts in India https://api.in.exotel.com.",
    )
    sid: Text | None = env("EXOTEL_SID", None, "The account. Unset, Exotel is not used.")
    api_key: Text | None = env("EXOTEL_API_KEY", None, "The name that goes with the token.")
    api_token: Secret | None = env("EXOTEL_API_TOKEN", None, "The account's token.")
    app_id: Text | None = env(
        "EXOTEL_APP_ID", None, "The flow that answered calls run through. Without it nothing is dialled."
    )
    time_zone: Text = env(
        "EXOTEL_TIME_ZONE", "Asia/Kolkata", "The zone in which the account's times are told."
    )
    starts_per_s: Rate = env(
        "EXOTEL_CALLS_PER_SECOND",
        "3",
        "Calls that the account may start per second: what Exotel allows it, or less.",
    )


class Vapi(Group):
    base_url: HttpUrl = env("VAPI_BASE_URL", "https://api.vapi.ai", "Where Vapi's API is.")
    api_key: Secret | None = env(
        "VAPI_API_KEY", None, "The organisation's private key. Unset, Vapi is not used."
    )
    webhook_secret: Secret | None = env(
        "VAPI_WEBHOOK_SECRET",
        None,
        "What proves a message of Vapi's: sent with it, or its signature made with it.",
    )
    assistant_id: Text | None = env(
        "VAPI_ASSISTANT_ID", None, "The assistant that talks, unless a lead names another. Needed to dial."
    )
    starts_per_s: Rate = env(
        "VAPI_CALLS_PER_SECOND",
        "10",
        "Calls that the account may start per second: what Vapi allows it, or less.",
    )


class Router(Group):
    """Handing calls to pods."""

    key_prefix: Text = env(
        "ROUTER_KEY_PREFIX",
        "voice",
        "First part of the router's keys. On a cluster it becomes the hash tag `{voice}`.",
    )
    agent_base_url: SocketUrl = env(
        "VOICE_AGENT_BASE_URL", "wss://localhost:8081", "Base of the pods' WebSocket URLs."
    )
    heartbeat_ttl_s: Seconds = env(
        "VOICE_AGENT_HEARTBEAT_TTL", "90s", "A pod that was not heard of for this long counts as gone."
    )
    tier_config: TierText = env(
        "TIER_CONFIG",
        "{}",
        "Tiers of pods, as JSON. `{}`: one pod gold, one basic for three calls at once, the others standard.",
    )
    cleanup_interval_s: Seconds = env(
        "CLEANUP_INTERVAL", "30s", "How often pods that fell out of their pool are looked for."
    )
    lease_ttl_s: Seconds = env("LEASE_TTL", "24h", "The longest that a call keeps its pod.")
    draining_ttl_s: Seconds = env("DRAINING_TTL", "6m", "An operator's drain ends by itself after this.")
    reconcile_interval_s: Seconds = env(
        "RECONCILE_INTERVAL",
        "60s",
        "How often pools, tiers and merchants' tiers are compared with the truth.",
    )
    hold_max_s: Annotated[
        float,
        BeforeValidator(parse_duration_s),
        Field(ge=0, le=3600),
        Allowed("a duration up to `1h`; `0` for none"),
    ] = env(
        "ROUTER_HOLD_MAX", "0", "How long a call may wait for a pod. `0`: it hears at once that all are busy."
    )
    is_open: Switch = env(
        "ROUTER_API_OPEN",
        "false",
        "Ask for no key at the router's own endpoints. Only where nobody else reaches them.",
    )
    pod_source: Annotated[Literal["heartbeat", "kubernetes"], BeforeValidator(lower)] = env(
        "POD_SOURCE", "heartbeat", "Who says which pods there are: they themselves, or the cluster."
    )
    namespace: Text = env("NAMESPACE", "default", "The namespace whose pods are watched.")
    label_selector: Text = env("POD_LABEL_SELECTOR", "app=voice-agent", "Which pods of it are agents.")
    cluster_url: HttpUrl | None = env(
        "KUBERNETES_API_URL", None, "Where the cluster's API server is. Unset, where the cluster says it is."
    )
    cluster_host: Text | None = env("KUBERNETES_SERVICE_HOST", None, "Set by the cluster in every pod.")
    cluster_port: Port = env("KUBERNETES_SERVICE_PORT", 443, "Set by the cluster in every pod.")
    cluster_token_file: Folder = env(
        "KUBERNETES_TOKEN_FILE",
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "What this process proves itself with to the API server.",
    )
    cluster_ca_file: Folder = env(
        "KUBERNETES_CA_FILE",
        "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
        "What the API server proves itself with.",
    )
    lease_namespace: Text | None = env(
        "LEADER_ELECTION_NAMESPACE", None, "Where the manager's Lease is. Unset, in NAMESPACE."
    )
    lease_name: Text = env(
        "LEADER_ELECTION_LOCK_NAME", "smart-router-leader", "Name of the manager's Lease on a cluster."
    )

    @property
    def tiers(self) -> Tiers:
        return parse_tiers(self.tier_config)


class Jobs(Group):
    """Durable work after a commit."""

    concurrency: int = env("JOB_CONCURRENCY", 100, "Jobs that one process runs at a time.", ge=1, le=10_000)
    lease_s: Seconds = env(
        "JOB_LEASE", "15s", "A worker that was not heard of for this long loses its jobs to others."
    )
    renew_s: Seconds = env("JOB_LEASE_RENEW_INTERVAL", "5s", "How often a worker renews its leases.")
    probe_s: Seconds = env(
        "JOB_PROBE_INTERVAL",
        "1s",
        "How often a worker looks at everything, so how long a lost notification costs.",
    )
    poll_s: Seconds = env(
        "JOB_POLL_INTERVAL",
        "30s",
        "How often it does so at least, when the outbox is so full of dead rows that looking is dear.",
    )
    notify: Switch = env(
        "JOB_NOTIFY_ENABLED", "true", "Without notifications jobs are found by probes and timers alone."
    )
    history_s: Seconds = env("JOB_HISTORY_RETENTION", "168h", "How long finished jobs are remembered.")
    dead_s: Seconds = env("JOB_DEAD_RETENTION", "720h", "How long dead letters wait for a replay.")
    modules: Modules = env(
        "JOB_MODULES",
        "",
        "Modules that declare job types and recurring jobs of your own, imported at the start.",
    )
    enricher: Text | None = env(
        "CALL_ENRICHER",
        None,
        "What is made of calls that agents report on or carriers recorded: `fetch` keeps recording and transcript, "
        "`package.module:factory` names an enricher of yours. Unset, nothing.",
    )
    enrichment_s: Seconds | None = env(
        "ENRICHMENT_RETENTION",
        None,
        "How long what was found out about calls is kept: recordings, transcripts, data. Unset, as long as the calls.",
    )
    allow_insecure_webhooks: Switch = env(
        "WEBHOOK_ALLOW_INSECURE",
        "false",
        "For development only: webhooks to plain HTTP and to addresses that are not public.",
    )


class Mailboxes(Group):
    """Folding the events of calls, and how long the events of every mailbox are kept."""

    concurrency: int = env(
        "MAILBOX_CONCURRENCY",
        2,
        "Batches of calls that one process folds at a time. Each holds a connection while it writes.",
        ge=1,
        le=100,
    )
    lease_s: Seconds = env(
        "MAILBOX_LEASE",
        "15s",
        "A worker that was not heard of for this long loses its mailboxes to others. Renewed three times in it.",
    )
    failures_max: int = env(
        "MAILBOX_FAILURES_MAX", 10, "After so many failures in a row a mailbox is dead.", ge=1, le=1000
    )
    keep_s: Seconds = env(
        "MAILBOX_RETENTION",
        "168h",
        "How long processed events are kept. A repeated event is recognised for as long.",
    )


class Reminders(Group):
    """Making the occurrences of reminders, and how often each is tried."""

    poll_s: Seconds = env(
        "SCHEDULER_POLL_INTERVAL_SECONDS", "60s", "How often to look for reminders that are due."
    )
    batch_max: int = env(
        "SCHEDULER_BATCH_SIZE",
        10,
        "Reminders that one look takes at most. A full one is repeated at once.",
        ge=1,
        le=1000,
    )
    retry_base_s: Seconds = env(
        "RETRY_BASE_DELAY_SECONDS",
        "60s",
        "How long any lead waits after its first failed attempt, doubled after each further one, unless a policy says "
        "otherwise. `1s` to `24h`.",
        ge=1,
        le=86_400,
    )
    attempts_max: int = env(
        "RETRY_MAX_ATTEMPTS", 3, "Attempts of an occurrence, unless its reminder says otherwise.", ge=1, le=20
    )


class Control(Group):
    """What steers the platform while it runs."""

    restore_guard: Literal["strict", "witness"] = env(
        "RESTORE_GUARD",
        "witness",
        "When nobody remembers how far Postgres had come: `strict` starts with the kill switch on, `witness` goes on.",
    )
    flag_provider: Text | None = env(
        "FEATURE_FLAG_PROVIDER",
        None,
        "`package.module:factory` of an OpenFeature provider. Unset, flags are those of the API.",
    )
    alarm_webhook_url: SecretUrl | None = env(
        "ALARM_WEBHOOK_URL", None, "Where to tell that an alarm was raised or cleared. Unset, nowhere."
    )


class Spans(Group):
    endpoint: HttpUrl | None = env(
        "OTEL_EXPORTER_OTLP_ENDPOINT", None, "Where spans are sent by OTLP over HTTP. Unset, there are none."
    )


class Row(NamedTuple):
    """A setting as `trunkline config` shows it."""

    name: str
    value: str
    default: str
    meaning: str
    source: Source


class Settings(Group):
    """All settings. `load_settings` makes one, at the start of a process."""

    roles: Annotated[
        tuple[Role, ...],
        BeforeValidator(lambda value: ROLES if value == "all" else split_list(value)),
        Field(min_length=1),
        Allowed(f"`all`, or some of {', '.join(f'`{role}`' for role in ROLES)}, with commas between"),
    ] = env("TRUNKLINE_ROLES", "all", "What this process does.")
    data_dir: Folder = env(
        "TRUNKLINE_DATA_DIR", ".trunkline", "Folder of the embedded engines and generated keys."
    )
    domain: Name = env(
        "TRUNKLINE_DOMAIN", "main", "Dispatch domain: what shares numbers and limits shares a domain."
    )
    identity: Text = env(
        "POD_NAME", host_and_process, "Name of this process among its peers, and of the leader."
    )
    secret_keys: SecretKeys = env(
        "TRUNKLINE_SECRET_KEY",
        "",
        "Encrypts credentials and signs URLs, the same in every process. Unset, one is kept in the data folder.",
    )
    admin_key: LongSecret | None = env(
        "TRUNKLINE_ADMIN_KEY",
        None,
        "The first API key, with the scope `admin`. Unset, one is kept in the data folder.",
    )
    database: Database = Database()
    redis: Redis = Redis()
    http: Http = Http()
    log: Log = Log()
    leader: Leader = Leader()
    dispatch: Dispatch = Dispatch()
    carrier: Carrier = Carrier()
    twilio: Twilio = Twilio()
    plivo: Plivo = Plivo()
    exotel: Exotel = Exotel()
    vapi: Vapi = Vapi()
    router: Router = Router()
    jobs: Jobs = Jobs()
    mailboxes: Mailboxes = Mailboxes()
    reminders: Reminders = Reminders()
    control: Control = Control()
    spans: Spans = Spans()

    _given: dict[str, tuple[Source, str]] = PrivateAttr(default_factory=dict)
    _warnings: tuple[str, ...] = PrivateAttr(default=())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was read and looks like a mistake, to be logged once there is a log."""
        return self._warnings

    def describe(self) -> Iterator[Row]:
        """Every setting with its value, secrets masked."""
        for variable in variables_of(type(self)).values():
            source, text = self._given.get(variable.name, ("default", variable.default))
            yield Row(variable.name, variable.masked(text), variable.default, variable.meaning, source)

    @property
    def router_key_prefix(self) -> str:
        """A script on a cluster may only touch keys of one slot, and the braces put them there."""
        prefix = self.router.key_prefix
        return f"{{{prefix}}}" if self.redis.cluster and "{" not in prefix else prefix

"""Settings of the infrastructure of every process: engines, network, logs and traces, leadership."""

import os
import socket
from typing import Annotated, Literal

from pydantic import BeforeValidator

from trunkline.settings.values import (
    HttpUrl,
    Networks,
    Port,
    PostgresUrl,
    RedisUrl,
    Seconds,
    Switch,
    Text,
    lower,
)
from trunkline.settings.variables import Group, env, operator_env


def host_and_process() -> str:
    """`<host>-<process id>`"""
    return f"{socket.gethostname()}-{os.getpid()}"


class DatabaseSettings(Group):
    """Postgres, the truth."""

    url: PostgresUrl | None = operator_env(
        "DATABASE_URL",
        None,
        "Postgres to use. Unset, an embedded one is started in the data folder.",
        repr=False,
    )
    direct_url: PostgresUrl | None = operator_env(
        "DATABASE_DIRECT_URL",
        None,
        "The same database past any pooler, for LISTEN and for migrations. Unset, DATABASE_URL is used.",
        repr=False,
    )
    pool_size: int = env(
        "DATABASE_POOL_SIZE",
        10,
        "Connections that one process opens at most, and as many again for what the API only reads. Answers to "
        "carriers, appends to mailboxes, leases and jobs have a few of their own.",
        ge=1,
        le=1000,
    )
    pooler: Literal["none", "transaction"] = operator_env(
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

    url: RedisUrl | None = operator_env(
        "REDIS_URL",
        None,
        "Valkey or Redis to use. Unset, an embedded one is started in the data folder.",
        repr=False,
    )
    cluster: Switch = operator_env("REDIS_CLUSTER", "false", "Whether REDIS_URL is a node of a cluster.")
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
        "A process sends its scripts over one connection, and opens others when it needs them.",
        rank="ignored",
        ge=0,
        le=1000,
    )
    max_retries: int = env(
        "REDIS_MAX_RETRIES",
        3,
        "The code that sends a command decides whether it may be repeated, and how often.",
        rank="ignored",
        ge=0,
        le=100,
    )


class Http(Group):
    """The API and the metrics page."""

    host: Text = operator_env(
        "HTTP_HOST", "127.0.0.1", "Address to listen on. `0.0.0.0` opens it to the network."
    )
    port: Port = operator_env("HTTP_PORT", 8080, "Port of the API.")
    metrics_port: Port = operator_env(
        "METRICS_PORT", 9090, "Port of `/metrics` alone. The API's port serves it too."
    )
    public_base_url: HttpUrl | None = operator_env(
        "PUBLIC_BASE_URL",
        None,
        "Where carriers reach the API; every callback URL begins with it. Unset, the address listened on.",
    )
    fallback_base_url: HttpUrl | None = env(
        "FALLBACK_BASE_URL",
        None,
        "Another public URL of the API, from which carriers request the document of a call when PUBLIC_BASE_URL "
        "gave none: another proxy or region. Unset, carriers request it from PUBLIC_BASE_URL once more.",
    )
    trusted_proxies: Networks = operator_env(
        "TRUSTED_PROXIES",
        "",
        "The proxies whose `X-Forwarded-Host` and `X-Forwarded-Proto` are trusted. PUBLIC_BASE_URL, if set, wins "
        "over both.",
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
    level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = operator_env(
        "LOG_LEVEL", "info", "Lines below this level are dropped."
    )
    format: Annotated[Literal["auto", "json", "console"], BeforeValidator(lower)] = env(
        "LOG_FORMAT",
        "auto",
        "The format of log lines. `auto` is `console` in a terminal and `json` otherwise.",
    )


class Leader(Group):
    """The leases under which one process of many does what only one may do: one of `control`, one of `router`."""

    enabled: Switch = env(
        "LEADER_ELECTION_ENABLED",
        "true",
        "Without election this process manages the router's pools. Only for a single process with the role `router`. "
        "The role `control` elects its leader in any case.",
    )
    duration_s: Seconds = env("LEADER_ELECTION_DURATION", "15s", "How long a lease holds without renewal.")
    renew_deadline_s: Seconds = env(
        "LEADER_ELECTION_RENEW_DEADLINE", "10s", "A leader that could not renew for this long stops leading."
    )
    retry_period_s: Seconds = env(
        "LEADER_ELECTION_RETRY_PERIOD", "2s", "Time between two tries to acquire or renew the lease."
    )


class Spans(Group):
    endpoint: HttpUrl | None = operator_env(
        "OTEL_EXPORTER_OTLP_ENDPOINT", None, "Where spans are sent by OTLP over HTTP. Unset, there are none."
    )

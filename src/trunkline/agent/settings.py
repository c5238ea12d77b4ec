"""An agent's settings, from its environment. The agent reads these variables and no others."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

_ROUTER_URL = "http://smart-router:8080"
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class AgentSettingsError(Exception):
    """Some variables are wrong; the message has one line for each."""


@dataclass(frozen=True, slots=True)
class AgentSettings:
    router_url: str = _ROUTER_URL
    api_key: str = field(default="", repr=False)
    router_timeout_s: float = 3.0
    pod_name: str = field(default_factory=socket.gethostname)
    # Reported to the router, and the address to bind to.
    pod_ip: str = "127.0.0.1"
    # Where carriers reach this pod (`wss://…`); empty: the router's own VOICE_AGENT_BASE_URL.
    base_url: str = ""
    # Where context, state and reports of calls go; empty: the router's URL.
    platform_url: str = ""
    # The router counts a pod as silent after three of its own intervals, and never before 15 s.
    heartbeat_interval_s: float = 5.0
    # How long live calls may go on once the pod leaves; None: as long as the platform's longest call, and a minute.
    shutdown_timeout_s: float | None = None
    # Accept streams on the fallback URL, without a token: for agents outside the pools.
    accepts_fallback: bool = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "AgentSettings":
        reader = _Reader(environ)
        settings = cls(
            router_url=reader.text("SMART_ROUTER_BASE_URL", _ROUTER_URL),
            api_key=reader.text("SMART_ROUTER_API_KEY", ""),
            router_timeout_s=reader.duration_s("SMART_ROUTER_TIMEOUT_MS", 3.0, unit="ms"),
            pod_name=reader.text("POD_NAME", socket.gethostname()),
            pod_ip=reader.text("POD_IP", "127.0.0.1"),
            base_url=reader.text("VOICE_AGENT_BASE_URL", ""),
            platform_url=reader.text("TRUNKLINE_API_URL", ""),
            heartbeat_interval_s=reader.duration_s("VOICE_AGENT_HEARTBEAT_INTERVAL", 5.0),
            shutdown_timeout_s=reader.duration_s("VOICE_AGENT_SHUTDOWN_TIMEOUT", 0.0) or None,
            accepts_fallback=reader.text("VOICE_AGENT_ACCEPT_FALLBACK", "false").lower() == "true",
        )
        if not settings.router_url.startswith(("http://", "https://")):
            reader.problems.append("SMART_ROUTER_BASE_URL: must begin with http:// or https://")
        if settings.platform_url and not settings.platform_url.startswith(("http://", "https://")):
            reader.problems.append("TRUNKLINE_API_URL: must begin with http:// or https://")
        if settings.base_url and not settings.base_url.startswith(("ws://", "wss://")):
            reader.problems.append("VOICE_AGENT_BASE_URL: must begin with ws:// or wss://")
        if reader.problems:
            raise AgentSettingsError("\n".join(reader.problems))
        return settings


class _Reader:
    """Collects every problem, so that one run shows them all."""

    def __init__(self, environ: Mapping[str, str]):
        self._environ = environ
        self.problems: list[str] = []

    def text(self, name: str, default: str) -> str:
        return self._environ.get(name, "").strip() or default

    def duration_s(self, name: str, default_s: float, unit: str = "s") -> float:
        text = self.text(name, "")
        if not text:
            return default_s
        try:
            seconds = _seconds(text, unit)
        except ValueError:
            self.problems.append(f"{name}: {text!r} is not a duration such as 30, 5s or 2m")
            return default_s
        if not 0 < seconds < 86_400:
            self.problems.append(f"{name}: must be more than 0 and less than a day")
        return seconds


def _seconds(text: str, plain_unit: str) -> float:
    """`5s`, `200ms`, `1m30s`; a plain number is in the variable's own unit."""
    parts = _PART.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
    return float(text) * _UNITS_S[plain_unit]

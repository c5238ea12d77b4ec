"""Settings of the router's client, from its environment. It reads these variables and no others."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from trunkline.client.breaker import BreakerRule

ROUTER_URL = "http://smart-router:8080"
_TRUE = frozenset({"true", "1", "yes", "on"})
_FALSE = frozenset({"false", "0", "no", "off"})


class RouterSettingsError(Exception):
    """Some variables are wrong; the message has one line for each."""


@dataclass(frozen=True, slots=True)
class RouterSettings:
    # The main switch: without it every call goes to the fallback.
    is_enabled: bool = False
    base_url: str = ROUTER_URL
    api_key: str = field(default="", repr=False)
    timeout_s: float = 3.0
    retry_attempts: int = 3
    fallback_enabled: bool = True
    # `wss://…` of any agent, without a pod in it. `{call_sid}` and `{provider}` are filled in.
    fallback_url: str = ""
    breaker: BreakerRule = field(default_factory=BreakerRule)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "RouterSettings":
        reader = SettingsReader(environ)
        settings = cls(
            is_enabled=reader.switch("ENABLE_VOICE_AGENT_POD_ISOLATION", False),
            base_url=reader.text("SMART_ROUTER_BASE_URL", ROUTER_URL),
            api_key=reader.text("SMART_ROUTER_API_KEY", ""),
            timeout_s=reader.number("SMART_ROUTER_TIMEOUT_MS", 3000, 1, 60_000) / 1000,
            retry_attempts=reader.number("SMART_ROUTER_RETRY_ATTEMPTS", 3, 1, 10),
            fallback_enabled=reader.switch("SMART_ROUTER_ENABLE_FALLBACK", True),
            fallback_url=reader.text("SMART_ROUTER_FALLBACK_URL", ""),
            breaker=BreakerRule(
                reader.number("SMART_ROUTER_CB_FAILURE_THRESHOLD", 5, 1, 1000),
                float(reader.number("SMART_ROUTER_CB_RECOVERY_TIMEOUT", 30, 1, 3600)),
                reader.number("SMART_ROUTER_CB_HALF_OPEN_MAX_CALLS", 3, 1, 1000),
            ),
        )
        if not settings.base_url.startswith(("http://", "https://")):
            reader.problems.append("SMART_ROUTER_BASE_URL: must begin with http:// or https://")
        if settings.fallback_url and not settings.fallback_url.startswith(("ws://", "wss://")):
            reader.problems.append("SMART_ROUTER_FALLBACK_URL: must begin with ws:// or wss://")
        reader.check()
        return settings


class SettingsReader:
    """Collects every problem, so that one run shows them all."""

    def __init__(self, environ: Mapping[str, str]):
        self._environ = environ
        self.problems: list[str] = []

    def text(self, name: str, default: str) -> str:
        return self._environ.get(name, "").strip() or default

    def switch(self, name: str, default: bool) -> bool:
        text = self.text(name, "").lower()
        if text and text not in _TRUE | _FALSE:
            self.problems.append(f"{name}: {text!r} is neither true nor false")
        return text in _TRUE if text else default

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name, "")
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            self.problems.append(f"{name}: {text!r} is not a whole number from {least} to {most}")
            return default
        return int(text)

    def check(self) -> None:
        if self.problems:
            raise RouterSettingsError("\n".join(self.problems))

"""Settings of the answer routes: their URL, and the credentials by which they verify carriers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """`secret`: the required value of `?secret=`, if it is set. `own_url`: where carriers reach this agent; signatures
    cover it, so it is needed behind a proxy. There may be two tokens, during a rotation."""

    secret: str = field(default="", repr=False)
    own_url: str = ""
    twilio_tokens: Sequence[str] = field(default=(), repr=False)
    plivo_tokens: Sequence[str] = field(default=(), repr=False)
    # Exotel signs nothing: it sends this password, and the secret is in its URL.
    exotel_password: str = field(default="", repr=False)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "AnswerSettings":
        def text(name: str) -> str:
            return environ.get(name, "").strip()

        def several(name: str) -> tuple[str, ...]:
            return tuple(token.strip() for token in text(name).split(",") if token.strip())

        return cls(
            secret=text("VOICE_AGENT_ANSWER_SECRET"),
            own_url=text("VOICE_AGENT_ANSWER_URL"),
            twilio_tokens=several("TWILIO_AUTH_TOKEN"),
            plivo_tokens=several("PLIVO_AUTH_TOKEN"),
            exotel_password=text("VOICE_AGENT_EXOTEL_PASSWORD"),
        )

    def proves(self, provider: str) -> bool:
        """Whether this provider's requests are verified."""
        known = {"twilio": self.twilio_tokens, "plivo": self.plivo_tokens, "exotel": self.exotel_password}
        return bool(self.secret or known[provider])

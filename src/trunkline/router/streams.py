"""The secrets of pods and the tokens that open their streams.

A pod's secret is derived from the platform's key and the pod's name. The router sends it in the reply to the pod's
heartbeat, so a pod holds its own secret and none that opens another pod's streams.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote

from trunkline.agent import token
from trunkline.sealing import derived_keys


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """The first key signs; pods get the secrets of all, so a rotation breaks no call in flight."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "StreamKeys":
        return cls(derived_keys(secrets, b"trunkline stream token 1"))

    def pod_secrets(self, pod: str) -> list[bytes]:
        return [_pod_secret(key, pod) for key in self.keys]

    def sign(self, pod: str, call_sid: str, allocation_id: str, turn: int = 0) -> str:
        return token.sign(_pod_secret(self.keys[0], pod), call_sid, allocation_id, turn)


# Every allocation signs with the secret of its pod, and pods are few beside calls.
@lru_cache(maxsize=20_000)
def _pod_secret(key: bytes, pod: str) -> bytes:
    return hmac.digest(key, f"pod:{pod}".encode(), "sha256")


def stream_url(base_url: str, pod: str, call_sid: str) -> str:
    return _pod_url(base_url, pod) + quote(call_sid, safe="")


@lru_cache(maxsize=20_000)
def _pod_url(base_url: str, pod: str) -> str:
    return f"{base_url.rstrip('/')}/ws/pod/{quote(pod, safe='')}/"

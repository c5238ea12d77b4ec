"""The tokens that open streams, and those that prove that an agent has a call.

A pod's secret is derived from the platform's key and the pod's name. The router sends it in the reply to the pod's
heartbeat, so a pod holds its own secret and none that opens another pod's streams.

An agent gets its call token with the stream, and sends it with requests about the call and with its report. The token
binds the attempt to the carrier's id of the call, so it opens this one call and nothing else of any tenant. It does not
expire: the platform accepts a report after the end too, and a second one changes nothing. Its turn names the agent: one
that lost the call to another agent can change nothing any more.

The platform's secret also encrypts and signs elsewhere: each use has its own derived key. The first key signs, and all
of them verify, so a rotation breaks no call in flight.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote
from uuid import UUID

from trunkline.agent import token
from trunkline.routing import Allocation
from trunkline.sealing import derived_keys

_STREAMS = b"trunkline stream token 1"
_CALLS = b"trunkline call token 1"


@dataclass(frozen=True, slots=True)
class StreamKeys:
    """Opens streams at pods. `base_url` is for pods that report none of their own."""

    keys: tuple[bytes, ...] = field(repr=False)
    base_url: str

    @classmethod
    def from_secrets(cls, secrets: Sequence[str], base_url: str = "wss://localhost:8081") -> "StreamKeys":
        return cls(derived_keys(secrets, _STREAMS), base_url)

    def pod_secrets(self, pod: str) -> list[bytes]:
        return [_pod_secret(key, pod) for key in self.keys]

    def url(self, allocation: Allocation) -> str:
        """`{base}/ws/pod/{pod}/{call}`"""
        base_url = (allocation.base_url or self.base_url).rstrip("/")
        return f"{base_url}/ws/pod/{quote(allocation.slot.pod, safe='')}/{quote(allocation.call, safe='')}"

    def sign(self, allocation: Allocation) -> str:
        secret = _pod_secret(self.keys[0], allocation.slot.pod)
        return token.sign(secret, allocation.call, allocation.id.hex, allocation.turn)


# Every allocation signs with the secret of its pod, and pods are few beside calls.
@lru_cache(maxsize=20_000)
def _pod_secret(key: bytes, pod: str) -> bytes:
    return hmac.digest(key, f"pod:{pod}".encode(), "sha256")


@dataclass(frozen=True, slots=True)
class CallProof:
    """What a call token was made for. `turn`: how many agents the call had before this one."""

    attempt_id: UUID
    turn: int = 0


@dataclass(frozen=True, slots=True)
class CallKeys:
    """Signs and verifies call tokens."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "CallKeys":
        return cls(derived_keys(secrets, _CALLS))

    def sign(self, attempt_id: UUID, call_id: str, turn: int = 0, key: bytes | None = None) -> str:
        """Without the attempt's id, which travels beside it: Exotel takes 256 characters for all parameters."""
        signed = f"{attempt_id}\n{call_id}" + (f"\n{turn}" if turn else "")
        digest = hmac.digest(key or self.keys[0], signed.encode(), "sha256")
        return urlsafe_b64encode(digest).rstrip(b"=").decode()

    def verify(self, token: str, call_id: str) -> CallProof | None:
        """What a token `<attempt id>.<signature>`, or `<attempt id>.<turn>.<signature>` from the second agent on, was
        made for; None if it was not made for this call."""
        attempt, _, rest = token.partition(".")
        turn, _, signature = rest.rpartition(".")
        try:
            proof = CallProof(UUID(attempt), int(turn or 0))
        except ValueError:
            return None
        # Every key is tried, whether one fits or not, so the time does not reveal which one signed.
        signed = [self.sign(proof.attempt_id, call_id, proof.turn, key).encode() for key in self.keys]
        fits = [hmac.compare_digest(each, signature.encode()) for each in signed]
        is_plain = attempt == str(proof.attempt_id) and turn == (str(proof.turn) if proof.turn else "")
        return proof if any(fits) and is_plain else None

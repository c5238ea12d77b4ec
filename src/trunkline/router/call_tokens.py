"""Tokens that prove that an agent has a call. The agent gets one with its stream, and sends it with requests about the
call and with its report.

A token binds the attempt to the carrier's id of the call, so it opens this one call and nothing else of any tenant. It
does not expire: the platform accepts a report after the end too, and a second one changes nothing. Its turn names the
agent: one that lost the call to another agent can change nothing any more.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from trunkline.sealing import derived_keys


@dataclass(frozen=True, slots=True)
class CallProof:
    """What a token was made for. `turn`: how many agents the call had before this one."""

    attempt_id: UUID
    turn: int = 0


@dataclass(frozen=True, slots=True)
class CallKeys:
    """The first key signs; all of them verify, so a rotation breaks no call in flight."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "CallKeys":
        return cls(derived_keys(secrets, b"trunkline call token 1"))

    def sign(self, attempt_id: UUID, call_id: str, turn: int = 0) -> str:
        """Without the attempt's id, which travels beside it: Exotel takes 256 characters for all parameters."""
        return _sign(self.keys[0], CallProof(attempt_id, turn), call_id)

    def verify(self, token: str, call_id: str) -> CallProof | None:
        """What a token `<attempt id>.<signature>`, or `<attempt id>.<turn>.<signature>` from the second agent on, was
        made for; None if it was not made for this call."""
        attempt, _, rest = token.partition(".")
        turn, _, signature = rest.rpartition(".")
        try:
            proof = CallProof(UUID(attempt), int(turn or 0))
        except ValueError:
            return None
        given = signature.encode()
        # Every key is tried, whether one fits or not, so the time does not reveal which one signed.
        fits = [hmac.compare_digest(_sign(key, proof, call_id).encode(), given) for key in self.keys]
        is_plain = token == ".".join(
            [str(proof.attempt_id), *([str(proof.turn)] if proof.turn else []), signature]
        )
        return proof if any(fits) and is_plain else None


def _sign(key: bytes, proof: CallProof, call_id: str) -> str:
    turn = f"\n{proof.turn}" if proof.turn else ""
    digest = hmac.digest(key, f"{proof.attempt_id}\n{call_id}{turn}".encode(), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode()

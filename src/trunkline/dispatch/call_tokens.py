"""The proof that an agent has a call: given along with its stream, shown when it asks about the call or reports on it.

It binds the attempt to the carrier's id of the call, so it opens this one call and nothing else of any tenant. It does
not expire by itself: a report is welcome after the end too, and a second one changes nothing.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

# The secret also encrypts and signs elsewhere: each use has its own derived key.
_PURPOSE = b"trunkline call token 1"


@dataclass(frozen=True, slots=True)
class CallKeys:
    """The first key signs; all of them verify, so a rotation breaks no call in flight."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "CallKeys":
        if not secrets or not all(secrets):
            raise ValueError("at least one secret, and none of them empty")
        return cls(tuple(hmac.digest(secret.encode(), _PURPOSE, "sha256") for secret in secrets))

    def sign(self, attempt_id: UUID, call_id: str) -> str:
        """Without the attempt's id, which travels beside it: Exotel takes 256 characters for all parameters."""
        return _sign(self.keys[0], attempt_id, call_id)

    def verify(self, token: str, call_id: str) -> UUID | None:
        """The attempt of a token `<attempt id>.<signature>`; None if it was not made for this call."""
        attempt, _, signature = token.partition(".")
        try:
            attempt_id = UUID(attempt)
        except ValueError:
            return None
        given = signature.encode()
        # Every key is tried, found or not, so the time says nothing about which one signed.
        fits = [hmac.compare_digest(_sign(key, attempt_id, call_id).encode(), given) for key in self.keys]
        return attempt_id if any(fits) and str(attempt_id) == attempt else None


def _sign(key: bytes, attempt_id: UUID, call_id: str) -> str:
    digest = hmac.digest(key, f"{attempt_id}\n{call_id}".encode(), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode()

"""The proof that a stream belongs to this pod and to this allocation: `<allocation id>.<HMAC>`.

The key is the pod's own secret, which nobody but the router and this pod has, so a token for one pod is worth
nothing at another. The router signs with this module, the agent verifies with it.
"""

import hmac
from collections.abc import Iterable


def sign(pod_secret: bytes, call_sid: str, allocation_id: str) -> str:
    message = f"{allocation_id}\n{call_sid}".encode()
    return f"{allocation_id}.{hmac.digest(pod_secret, message, 'sha256').hex()}"


def verify(pod_secrets: Iterable[bytes], call_sid: str, token: str) -> str | None:
    """The allocation that the token was made for; None if it was not made for this call at this pod."""
    allocation_id = token.rpartition(".")[0]
    given = token.encode()
    # Every secret is tried, found or not, so the time says nothing about which one signed.
    matches = [
        hmac.compare_digest(sign(secret, call_sid, allocation_id).encode(), given) for secret in pod_secrets
    ]
    return allocation_id if any(matches) else None

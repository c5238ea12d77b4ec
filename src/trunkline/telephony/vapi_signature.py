"""Verifies Vapi's webhooks: by an HMAC over time and body, or by the shared secret in a header.

HMAC, by Vapi's defaults: hex(HMAC-SHA256(secret, "{timestamp}.{body}")) in `x-signature`, the time in `x-timestamp`.
If there is a signature it must fit: the secret beside it proves nothing then.
"""

import hmac
from collections.abc import Sequence
from datetime import datetime

from trunkline.telephony.carrier import WebhookRequest

SIGNATURE = "x-signature"
TIMESTAMP = "x-timestamp"
SECRET = "x-vapi-secret"  # noqa: S105 - the name of a header

AGE_MAX_S = 300.0


def signature(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.digest(secret.encode(), timestamp.encode() + b"." + body, "sha256").hex()


def is_verified(
    request: WebhookRequest, secrets: Sequence[str], now: datetime, *, only_hmac: bool = False
) -> bool:
    given = request.headers.get(SIGNATURE, "").removeprefix("sha256=")
    if not given and not only_hmac:
        return _any_equal(secrets, request.headers.get(SECRET, ""))
    timestamp = request.headers.get(TIMESTAMP, "")
    expected = [signature(secret, timestamp, request.body) for secret in secrets]
    return _any_equal(expected, given.lower()) and _is_fresh(timestamp, now)


def _any_equal(expected: Sequence[str], given: str) -> bool:
    matches = [hmac.compare_digest(proof.encode(), given.encode("utf-8", "replace")) for proof in expected]
    return bool(given) and any(matches)


def _is_fresh(timestamp: str, now: datetime) -> bool:
    """Seconds or milliseconds since 1970: thirteen digits are milliseconds until the year 2286."""
    if not timestamp.isascii() or not timestamp.isdecimal() or len(timestamp) > 13:
        return False
    seconds = int(timestamp) / (1000 if len(timestamp) == 13 else 1)
    return abs(now.timestamp() - seconds) <= AGE_MAX_S

"""Signatures of appends to mailboxes, for senders that have a secret and no key.

    Trunkline-Signature: t=1893490200,v1=5257a869e7…

The HMAC-SHA256 covers time, mailbox and body, so an intercepted request is valid for no other mailbox, and for five
minutes. Within them the event's dedupe key makes a replay harmless.
"""

import hmac
import re
from collections.abc import Iterable

HEADER = "trunkline-signature"
TOLERANCE_S = 300

_FORM = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


def sign(secret: str, timestamp_s: int, kind: str, key: str, body: bytes) -> str:
    """The header's value."""
    return f"t={timestamp_s},v1={_digest(secret, timestamp_s, kind, key, body)}"


def is_good(header: str, secrets: Iterable[str], now_s: float, kind: str, key: str, body: bytes) -> bool:
    """Whether one of these secrets made the signature within the last five minutes."""
    form = _FORM.fullmatch(header.strip())
    if form is None or abs(now_s - int(form[1])) > TOLERANCE_S:
        return False
    digests = [_digest(secret, int(form[1]), kind, key, body) for secret in secrets]
    return any(hmac.compare_digest(digest, form[2]) for digest in digests)


def _digest(secret: str, timestamp_s: int, kind: str, key: str, body: bytes) -> str:
    to_sign = f"{timestamp_s}.{kind}/{key}.".encode("utf-8", "surrogateescape") + body
    return hmac.new(secret.encode(), to_sign, "sha256").hexdigest()

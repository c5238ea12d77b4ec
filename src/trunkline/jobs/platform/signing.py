"""Signatures of webhooks, as https://www.standardwebhooks.com specifies them, version 1, symmetric."""

import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Sequence

PREFIX = "whsec_"
SECRET_BYTES = 32


def new_secret() -> str:
    return PREFIX + b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signed_headers(message_id: str, timestamp_s: int, body: bytes, keys: Sequence[str]) -> dict[str, str]:
    """The three headers. During a rotation of the secret there are two signatures, and either is enough."""
    to_sign = b"%s.%d.%s" % (message_id.encode(), timestamp_s, body)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(_signature(to_sign, key) for key in keys),
    }


def _signature(to_sign: bytes, key: str) -> str:
    digest = hmac.digest(b64decode(key.removeprefix(PREFIX)), to_sign, "sha256")
    return f"v1,{b64encode(digest).decode()}"

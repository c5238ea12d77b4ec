"""Callback URLs that prove themselves: `{base}/webhooks/{carrier}/{kind}?attempt=<uuid>&sig=<hmac>`.

The signature binds the attempt to the kind of callback: nobody can invent an attempt, and a status URL does
not answer a call. For a carrier that signs nothing it is the only proof; for the others, a second one.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from uuid import UUID

from trunkline.telephony.carrier import CallbackKind, Forged

# The secret also encrypts and signs elsewhere: each use has its own derived key.
_PURPOSE = b"trunkline callback url 1"
_KINDS: dict[str, CallbackKind] = {kind: kind for kind in get_args(CallbackKind)}


@dataclass(frozen=True, slots=True)
class CallbackKeys:
    """The first key signs; all of them verify, so a rotation breaks no call in flight."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "CallbackKeys":
        if not secrets or not all(secrets):
            raise ValueError("at least one secret, and none of them empty")
        return cls(tuple(hmac.digest(secret.encode(), _PURPOSE, "sha256") for secret in secrets))


@dataclass(frozen=True, slots=True)
class CallbackTag:
    """What a verified callback URL says."""

    carrier: str
    kind: CallbackKind
    attempt_id: UUID | None


def callback_url(
    base_url: str, carrier: str, kind: CallbackKind, attempt_id: UUID | None, keys: CallbackKeys
) -> str:
    """Without an attempt (`inbound`) the signature still proves that the URL is ours."""
    query = {"attempt": str(attempt_id)} if attempt_id else {}
    query["sig"] = _sign(keys.keys[0], kind, attempt_id)
    return f"{base_url.rstrip('/')}/webhooks/{quote(carrier, safe='')}/{kind}?{urlencode(query)}"


def verify_callback(url: str, keys: CallbackKeys) -> CallbackTag | Forged:
    parts = urlsplit(url)
    path = parts.path.split("/")
    if len(path) < 4 or path[-3] != "webhooks" or path[-1] not in _KINDS:
        return Forged("not a callback URL")
    kind = _KINDS[path[-1]]
    query = parse_qsl(parts.query, keep_blank_values=True)
    signatures = [value for name, value in query if name == "sig"]
    attempts = [value for name, value in query if name == "attempt"]
    if len(signatures) != 1 or len(attempts) > 1:
        return Forged("callback signature missing")
    attempt_id = _uuid(attempts[0]) if attempts else None
    if attempts and attempt_id is None:
        return Forged("attempt id unreadable")
    if not _signed_by_any(keys, signatures[0], kind, attempt_id):
        return Forged("callback signature wrong")
    return CallbackTag(path[-2], kind, attempt_id)


def attempt_in(url: str) -> str | None:
    """The attempt a callback URL names, unverified: for records, never for decisions."""
    return dict(parse_qsl(urlsplit(url).query)).get("attempt")


def _sign(key: bytes, kind: CallbackKind, attempt_id: UUID | None) -> str:
    digest = hmac.digest(key, f"{kind}\n{attempt_id or ''}".encode(), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _signed_by_any(keys: CallbackKeys, signature: str, kind: CallbackKind, attempt_id: UUID | None) -> bool:
    given = signature.encode()
    # Every key is tried, found or not, so the time says nothing about which one signed.
    matches = [hmac.compare_digest(_sign(key, kind, attempt_id).encode(), given) for key in keys.keys]
    return any(matches)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None

"""Sessions and sign-in links: sealed tokens with the hash of a key and an expiry.

Sealed under TRUNKLINE_SECRET_KEY, so that without it none can be read or made, and every process of an installation
opens those of the others.
"""

import hmac
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import msgspec

from trunkline.model import new_id
from trunkline.sealing import SecretBox, derived_keys

SESSION_S = 12 * 3600
LINK_S = 15 * 60
SEALED_MAX = 1000

Kind = Literal["session", "link"]


class Pass(msgspec.Struct, frozen=True, array_like=True):
    """The sealed contents: a session, or a link that becomes one. `key_hash` is the SHA-256 of the API key."""

    kind: Kind
    id: UUID
    key_hash: bytes
    ends_at: datetime


class Seals:
    def __init__(self, secrets: Sequence[str]):
        self._box = SecretBox(secrets, b"trunkline console session 1")
        self._forgery_key = derived_keys(secrets, b"trunkline console forms 1")[0]

    def session(self, key_hash: bytes, now: datetime) -> Pass:
        return Pass("session", new_id(), key_hash, now.astimezone(UTC) + timedelta(seconds=SESSION_S))

    def link(self, key_hash: bytes, now: datetime) -> Pass:
        return Pass("link", new_id(), key_hash, now.astimezone(UTC) + timedelta(seconds=LINK_S))

    def seal(self, given: Pass) -> str:
        return self._box.seal(msgspec.msgpack.encode(given)).decode()

    def open(self, kind: Kind, sealed: str, now: datetime) -> Pass | None:
        """None for a token that is invalid, of another kind, or expired."""
        if not sealed or len(sealed) > SEALED_MAX or not sealed.isascii():
            return None
        unsealed = self._box.open(sealed.encode())
        if unsealed is None:
            return None
        try:
            opened = msgspec.msgpack.decode(unsealed.content, type=Pass)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return None
        return opened if opened.kind == kind and opened.ends_at > now else None

    def form_token(self, session: Pass) -> str:
        """The CSRF token of this session's forms."""
        return hmac.new(self._forgery_key, session.id.bytes, "sha256").hexdigest()

    def is_form_token(self, session: Pass, given: str) -> bool:
        return hmac.compare_digest(self.form_token(session).encode(), given.encode())

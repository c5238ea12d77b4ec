"""Secrets at rest and in cookies are encrypted under TRUNKLINE_SECRET_KEY. With two keys, both open and the first
seals."""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.fernet import Fernet, InvalidToken

from trunkline.errors import TrunklineError


class SealBroken(TrunklineError):
    """A stored secret was sealed under a key that this process does not have."""


def derived_keys(secrets: Sequence[str], purpose: bytes) -> tuple[bytes, ...]:
    """One secret signs URLs, encrypts and more: each use has its own key."""
    if not secrets or not all(secrets):
        raise ValueError("at least one secret, and none of them empty")
    return tuple(hmac.digest(secret.encode(), purpose, "sha256") for secret in secrets)


@dataclass(frozen=True, slots=True)
class Unsealed:
    content: bytes = field(repr=False)
    # Sealed under an old key during a rotation: seal it again.
    is_stale: bool


class SecretBox:
    def __init__(self, secrets: Sequence[str], purpose: bytes):
        self._keys = [Fernet(urlsafe_b64encode(key)) for key in derived_keys(secrets, purpose)]

    def seal(self, content: bytes) -> bytes:
        return self._keys[0].encrypt(content)

    def open(self, sealed: bytes) -> Unsealed | None:
        """None: sealed under none of the keys, or not sealed at all."""
        for key in self._keys:
            try:
                return Unsealed(key.decrypt(sealed), is_stale=key is not self._keys[0])
            except InvalidToken:
                continue
        return None


class Sealer:
    """Seals the secrets with which webhooks are signed."""

    def __init__(self, box: SecretBox):
        self._box = box

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "Sealer":
        return cls(SecretBox(secrets, b"trunkline sealed secrets"))

    def seal(self, text: str) -> bytes:
        return self._box.seal(text.encode())

    def open(self, sealed: bytes) -> str:
        opened = self._box.open(sealed)
        if opened is None:
            raise SealBroken("A stored secret cannot be opened. Is its key still among TRUNKLINE_SECRET_KEY?")
        return opened.content.decode()

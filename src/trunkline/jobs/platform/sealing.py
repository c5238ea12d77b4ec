"""Secrets in Postgres are encrypted under TRUNKLINE_SECRET_KEY. With two keys, both open and the first seals."""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from trunkline.errors import TrunklineError


class SealBroken(TrunklineError):
    """A stored secret was sealed under a key that this process does not have."""


class Sealer:
    def __init__(self, fernet: MultiFernet):
        self._fernet = fernet

    @classmethod
    def from_secrets(cls, keys: Sequence[str]) -> "Sealer":
        # Derived, so that the key that signs URLs is not the key that encrypts.
        derived = [hmac.digest(key.encode(), b"trunkline sealed secrets", "sha256") for key in keys]
        return cls(MultiFernet([Fernet(urlsafe_b64encode(key)) for key in derived]))

    def seal(self, text: str) -> bytes:
        return self._fernet.encrypt(text.encode())

    def open(self, sealed: bytes) -> str:
        try:
            return self._fernet.decrypt(sealed).decode()
        except InvalidToken:
            raise SealBroken(
                "A stored secret cannot be opened. Is its key still among TRUNKLINE_SECRET_KEY?"
            ) from None

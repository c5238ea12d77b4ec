"""Credentials of accounts, sealed for Postgres under TRUNKLINE_SECRET_KEY. With two keys both open, the first seals.

A sealed text names its account: copied to another row, it does not open there.
"""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

# The secret also signs URLs and seals elsewhere: each use has its own derived key.
_PURPOSE = b"trunkline carrier credentials 1"


@dataclass(frozen=True, slots=True)
class Opened:
    credentials: Mapping[str, str] = field(repr=False)
    # Sealed under the old key during a rotation: seal it again.
    is_stale: bool


@dataclass(frozen=True, slots=True)
class Unopenable:
    """Sealed under an unknown key, for another account, or not by this platform."""

    reason: str


class Vault:
    def __init__(self, keys: Sequence[Fernet]) -> None:
        self._newest = keys[0]
        self._all = MultiFernet(list(keys))

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "Vault":
        if not secrets or not all(secrets):
            raise ValueError("at least one secret, and none of them empty")
        derived = [hmac.digest(secret.encode(), _PURPOSE, "sha256") for secret in secrets]
        return cls([Fernet(urlsafe_b64encode(key)) for key in derived])

    def seal(self, carrier: str, account: str, credentials: Mapping[str, str]) -> bytes:
        content = {"carrier": carrier, "account": account, "credentials": dict(credentials)}
        return self._all.encrypt(msgspec.json.encode(content))

    def open(self, carrier: str, account: str, sealed: bytes) -> Opened | Unopenable:
        plain, is_stale = self._newest_first(sealed)
        if plain is None:
            return Unopenable("its key is not among TRUNKLINE_SECRET_KEY")
        try:
            content = msgspec.json.decode(plain, type=_Content)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return Unopenable("not the credentials of an account")
        if (content.carrier, content.account) != (carrier, account):
            return Unopenable("sealed for another account")
        return Opened(content.credentials, is_stale)

    def _newest_first(self, sealed: bytes) -> tuple[bytes | None, bool]:
        try:
            return self._newest.decrypt(sealed), False
        except InvalidToken:
            pass
        try:
            return self._all.decrypt(sealed), True
        except InvalidToken:
            return None, True


class _Content(msgspec.Struct, frozen=True):
    carrier: str
    account: str
    credentials: dict[str, str]

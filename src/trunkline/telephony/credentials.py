"""Credentials of accounts, sealed for Postgres. A sealed text names its account: copied to another row, it does not
open there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from trunkline.sealing import SecretBox


@dataclass(frozen=True, slots=True)
class Opened:
    credentials: Mapping[str, str] = field(repr=False)
    # Sealed under the old key during a rotation: seal it again.
    is_stale: bool


@dataclass(frozen=True, slots=True)
class Unopenable:
    """Sealed under an unknown key, for another account, or not by this platform."""

    reason: str


class _Content(msgspec.Struct, frozen=True):
    carrier: str
    account: str
    credentials: dict[str, str]


class Vault:
    def __init__(self, box: SecretBox) -> None:
        self._box = box

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "Vault":
        return cls(SecretBox(secrets, b"trunkline carrier credentials 1"))

    def seal(self, carrier: str, account: str, credentials: Mapping[str, str]) -> bytes:
        return self._box.seal(msgspec.json.encode(_Content(carrier, account, dict(credentials))))

    def open(self, carrier: str, account: str, sealed: bytes) -> Opened | Unopenable:
        opened = self._box.open(sealed)
        if opened is None:
            return Unopenable("its key is not among TRUNKLINE_SECRET_KEY")
        try:
            content = msgspec.json.decode(opened.content, type=_Content)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return Unopenable("not the credentials of an account")
        if (content.carrier, content.account) != (carrier, account):
            return Unopenable("sealed for another account")
        return Opened(content.credentials, opened.is_stale)

"""The first key, which creates all others: set by the operator, or generated for an embedded installation."""

from enum import StrEnum
from pathlib import Path

from trunkline.api import key_format
from trunkline.errors import TrunklineError
from trunkline.model import new_id
from trunkline.private_files import write_private
from trunkline.schema.keys import ApiKey, NewKey
from trunkline.store import audit, keys
from trunkline.store.database import Database
from trunkline.store.tenants import PLATFORM, tenant_of

NAME = "TRUNKLINE_ADMIN_KEY"
ACTOR = "operator"


class AdminKeyError(TrunklineError):
    """The operator's key cannot be used."""


class AdminKeyState(StrEnum):
    CREATED = "created"
    KNOWN = "known"
    # It was revoked or has expired, and stays so: the environment does not override a revocation.
    UNUSABLE = "unusable"


async def ensure_admin_key(database: Database, key: str) -> AdminKeyState:
    """Store this key with the scope `admin`. Idempotent, also when many processes start at once."""
    if not key_format.is_well_formed(key):
        raise AdminKeyError(_MALFORMED)
    async with database.transaction() as tx:
        created = await keys.KEYS.insert(
            tx,
            NewKey(NAME, ["admin"]),
            id=new_id(),
            key_hash=key_format.digest(key),
            hint=key_format.hint(key),
            created_by=ACTOR,
        )
        if created is not None:
            await audit.record(
                tx, actor=ACTOR, action="key.created", subject=str(created.id), tenant=PLATFORM
            )
            return AdminKeyState.CREATED
        return _state(await keys.by_hash(tx, key_format.digest(key)))


def read_or_make_admin_key(path: Path) -> str:
    """The key in this file; if there is none, a new one in a file that only its owner can read."""
    if not path.exists():
        write_private(path, key_format.mint(), replaces=False)
    path.chmod(0o600)
    key = path.read_text(encoding="utf-8").strip()
    if not key_format.is_well_formed(key):
        raise AdminKeyError(
            f"{path} holds no valid key. Remove the file, and a new key is made at the next start."
        )
    return key


def _state(known: ApiKey | None) -> AdminKeyState:
    if known is not None and ("admin" not in known.scopes or not tenant_of(known).is_platform):
        raise AdminKeyError(f"{NAME} is a key that exists already, with fewer rights. Choose another one.")
    is_usable = known is not None and known.revoked_at is None and known.expires_at is None
    return AdminKeyState.KNOWN if is_usable else AdminKeyState.UNUSABLE


_MALFORMED = (
    f"{NAME} must have {key_format.LENGTH_MIN} to {key_format.LENGTH_MAX} visible ASCII characters. "
    f"If it starts with {key_format.PREFIX}, it must be a key that Trunkline made."
)

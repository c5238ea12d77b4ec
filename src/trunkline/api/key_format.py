"""The format of keys: `tl_<32 letters and digits>_<6 of a checksum>`.

The middle has 190 random bits. By the checksum a scanner recognises a leaked key, and the API refuses a mistyped one
without a query. Keys are stored as SHA-256: with so much randomness a slow hash would protect nothing more.
"""

import hashlib
import re
import secrets
import string
import zlib

PREFIX = "tl_"
RANDOM_LENGTH = 32
CHECKSUM_LENGTH = 6
LENGTH_MIN = 16
LENGTH_MAX = 200

_ALPHABET = string.digits + string.ascii_letters
_VISIBLE = re.compile(r"[\x21-\x7e]+")


def mint() -> str:
    body = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(RANDOM_LENGTH))
    return f"{body}_{_checksum(body)}"


def is_well_formed(key: str) -> bool:
    """Whether this can be a key. An operator's own key has no prefix and no checksum."""
    if not LENGTH_MIN <= len(key) <= LENGTH_MAX or not _VISIBLE.fullmatch(key):
        return False
    if not key.startswith(PREFIX):
        return True
    body, _, checksum = key.rpartition("_")
    return len(body) == len(PREFIX) + RANDOM_LENGTH and checksum == _checksum(body)


def digest(key: str) -> bytes:
    return digest_of(key.encode())


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def hint(key: str) -> str:
    """Enough to distinguish keys, too little to guess one. Empty for an operator's own key."""
    return f"{key[:7]}…" if key.startswith(PREFIX) else "set by the operator"


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        number, rest = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))

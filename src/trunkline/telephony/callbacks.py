"""Signed callback URLs: `{base}/webhooks/{carrier}/{kind}?account=…&attempt=<uuid>&sig=<hmac>`.

The signature binds carrier, account and attempt to the kind of callback: an attempt cannot be forged, and a status URL
does not answer a call. For a carrier that signs nothing it is the only proof; for the others, a second one. The URL
names the account because its credentials are needed to verify the body.

The URL of `resume` also carries `turn`, the number of the stream that it follows, signed too: the webhook knows how
many agents the call had without a query, so a chain of failing streams ends even while no engine answers. The URL of
`answer` carries `agent=<incarnation>.<until>`, signed too: with both engines away the person still reaches the agent
that was reserved for the call.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import get_args
from urllib.parse import quote, quote_plus
from uuid import UUID

from trunkline.schema.router import TURN_MAX
from trunkline.sealing import derived_keys
from trunkline.telephony.carrier import (
    DEFAULT_ACCOUNT,
    CallbackKind,
    CallbackTag,
    Forged,
    ReservedAgent,
)
from trunkline.telephony.forms import read_form

_KINDS: dict[str, CallbackKind] = {kind: kind for kind in get_args(CallbackKind)}
# URLs longer than this are not cached; the platform's own have some 200 characters.
_CACHED_MAX = 1000
# Replaces the account's name, which cannot contain it: a tag stored at the carrier verifies no URL.
_STORED = "\n"
_FALLBACK = "fallback=1"
_UUID = "[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_AGENT = r"(0|[1-9a-f][0-9a-f]{0,15})\.(0|[1-9a-f][0-9a-f]{0,15})"
# What a callback URL may name, each at most once, and how it is written.
_NAMED = {
    "sig": re.compile(".*", re.DOTALL),
    "attempt": re.compile(_UUID),
    "account": re.compile(".*", re.DOTALL),
    "turn": re.compile(f"[0-{TURN_MAX}]"),
    "agent": re.compile(_AGENT),
    "held": re.compile("[1-9][0-9]{0,3}"),
}
_STORED_TAG = re.compile(rf"(?P<attempt>{_UUID})(\.(?P<agent>{_AGENT}))?\.(?P<signature>[^.]*)")


@dataclass(frozen=True, slots=True)
class CallbackKeys:
    """The first key signs; all of them verify, so a rotation breaks no call in flight."""

    keys: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def from_secrets(cls, secrets: Sequence[str]) -> "CallbackKeys":
        return cls(derived_keys(secrets, b"trunkline callback url 1"))


def callback_url(
    base_url: str,
    carrier: str,
    kind: CallbackKind,
    attempt_id: UUID | None,
    keys: CallbackKeys,
    account: str = DEFAULT_ACCOUNT,
    turn: int = 0,
    agent: ReservedAgent | None = None,
    held: int = 0,
) -> str:
    """Without an attempt (inbound calls) the signature still proves that the platform made the URL."""
    tag = CallbackTag(carrier, kind, attempt_id, account, turn, agent, held)
    named = "" if account == DEFAULT_ACCOUNT else f"account={quote_plus(account)}&"
    if attempt_id:
        named += f"attempt={attempt_id}&"
    if kind == "resume":
        named += f"turn={turn}&"
    if agent:
        named += f"agent={_agent_text(agent)}&"
    if held:
        named += f"held={held}&"
    signature = _sign(keys.keys[0], tag)
    return f"{base_url.rstrip('/')}/webhooks/{quote(carrier, safe='')}/{kind}?{named}sig={signature}"


def fallback_of(answer_url: str, base_url: str) -> str:
    """The answer URL at another public base, marked: the same call, which gets the same pod there. The mark is not
    signed; it only says that the carrier got no document before."""
    return f"{base_url.rstrip('/')}/webhooks/{answer_url.rpartition('/webhooks/')[2]}&{_FALLBACK}"


def is_fallback(url: str) -> bool:
    return _FALLBACK in url.partition("#")[0].partition("?")[2].split("&")


def verify_callback(url: str, keys: CallbackKeys) -> CallbackTag | Forged:
    """The five webhooks of a call come to two URLs, so recent results are cached."""
    return _verify(url, keys) if len(url) > _CACHED_MAX else _remembered(url, keys)


def _verify(url: str, keys: CallbackKeys) -> CallbackTag | Forged:
    target, _, query = url.partition("#")[0].partition("?")
    path = target.split("/")
    if len(path) < 4 or path[-3] != "webhooks" or path[-1] not in _KINDS:
        return Forged("not a callback URL")
    kind = _KINDS[path[-1]]
    named: dict[str, str] = {}
    for name, value in read_form(query.encode("utf-8", "replace")) or ():
        if name in _NAMED:
            if name in named or not _NAMED[name].fullmatch(value):
                return Forged(f"{name} unreadable")
            named[name] = value
    if "sig" not in named or ("turn" in named) != (kind == "resume"):
        return Forged("callback signature or turn missing")
    tag = CallbackTag(
        path[-2],
        kind,
        UUID(named["attempt"]) if "attempt" in named else None,
        named.get("account", DEFAULT_ACCOUNT),
        int(named.get("turn", 0)),
        _agent(named["agent"]) if "agent" in named else None,
        int(named.get("held", 0)),
    )
    return tag if _signed_by_any(keys, named["sig"], tag) else Forged("callback signature wrong")


_remembered = lru_cache(maxsize=4096)(_verify)


def signed_attempt(
    attempt_id: UUID, carrier: str, keys: CallbackKeys, agent: ReservedAgent | None = None
) -> str:
    """The attempt with its signature, and the agent that is reserved for it: 80 characters, about 95 with an agent, for
    a field that the carrier stores with the call (Exotel's holds 128)."""
    signature = _sign(keys.keys[0], CallbackTag(carrier, "status", attempt_id, _STORED, agent=agent))
    return ".".join([str(attempt_id), *([_agent_text(agent)] if agent else []), signature])


def verified_attempt(text: str, carrier: str, keys: CallbackKeys) -> CallbackTag | None:
    """What a carrier stored with the call and returns in its webhooks: attempt and agent."""
    found = _STORED_TAG.fullmatch(text)
    if found is None:
        return None
    agent = _agent(found["agent"]) if found["agent"] else None
    tag = CallbackTag(carrier, "status", UUID(found["attempt"]), _STORED, agent=agent)
    return tag if _signed_by_any(keys, found["signature"], tag) else None


def basic_password(carrier: str, account: str, key: bytes) -> str:
    """The password that a carrier without signatures sends, beside the secret of the URL."""
    digest = hmac.digest(key, f"basic\n{carrier}\n{account}".encode(), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def attempt_in(url: str) -> str | None:
    """The attempt that a callback URL names, unverified: for records, never for decisions."""
    query = url.partition("#")[0].partition("?")[2]
    return dict(read_form(query.encode("utf-8", "replace")) or ()).get("attempt") or None


def _sign(key: bytes, tag: CallbackTag) -> str:
    signed = f"{tag.carrier}\n{tag.account}\n{tag.kind}\n{tag.attempt_id or ''}"
    if tag.kind == "resume":
        signed += f"\n{tag.turn}"
    if tag.agent:
        signed += f"\nagent {_agent_text(tag.agent)}"
    if tag.held:
        signed += f"\nheld {tag.held}"
    digest = hmac.digest(key, signed.encode("utf-8", "replace"), "sha256")
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _signed_by_any(keys: CallbackKeys, signature: str, tag: CallbackTag) -> bool:
    given = signature.encode("utf-8", "replace")
    # Every key is tried, whether one fits or not, so the time does not reveal which one signed.
    matches = [hmac.compare_digest(_sign(key, tag).encode(), given) for key in keys.keys]
    return any(matches)


def _agent_text(agent: ReservedAgent) -> str:
    return f"{agent.incarnation:x}.{agent.until_s:x}"


def _agent(text: str) -> ReservedAgent:
    incarnation, _, until_s = text.partition(".")
    return ReservedAgent(int(incarnation, 16), int(until_s, 16))

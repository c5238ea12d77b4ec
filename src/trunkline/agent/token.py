"""Tokens that prove that a stream belongs to this pod, to this allocation and to this turn of it.

`<allocation id>.<HMAC>`, and `<allocation id>.<turn>.<HMAC>` for a call that got another agent, with turns from 1. The
key is the pod's own secret, which only the router and this pod have, so another pod refuses the token. The router signs
with this module, the agent verifies with it.
"""

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass

_TURN = re.compile(r"(.*)\.([1-9])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Proven:
    """What a token was made for. `turn`: how many agents the call had before this stream."""

    allocation_id: str
    turn: int = 0


def sign(pod_secret: bytes, call_sid: str, allocation_id: str, turn: int = 0) -> str:
    return _signed(pod_secret, call_sid, f"{allocation_id}.{turn}" if turn else allocation_id)


def verify(pod_secrets: Iterable[bytes], call_sid: str, token: str) -> Proven | None:
    """None if it was not made for this call at this pod."""
    name = token.rpartition(".")[0]
    given = token.encode()
    # Every secret is tried, whether one fits or not, so the time does not reveal which one signed.
    matches = [hmac.compare_digest(_signed(secret, call_sid, name).encode(), given) for secret in pod_secrets]
    if not any(matches):
        return None
    resumed = _TURN.fullmatch(name)
    return Proven(resumed[1], int(resumed[2])) if resumed else Proven(name)


def _signed(pod_secret: bytes, call_sid: str, name: str) -> str:
    digest = hmac.digest(pod_secret, f"{name}\n{call_sid}".encode(), "sha256")
    return f"{name}.{digest.hex()}"

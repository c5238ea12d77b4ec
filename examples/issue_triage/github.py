"""GitHub's webhooks: are they genuine, and which issue are they about?"""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SIGNATURE = "X-Hub-Signature-256"
EVENT = "X-GitHub-Event"
# One id for each event, also when it is delivered again.
DELIVERY = "X-GitHub-Delivery"

EVENTS = frozenset({"issues", "issue_comment"})


@dataclass(frozen=True, slots=True)
class About:
    """The issue that a webhook is about, as people write it: `acme/site#12`."""

    key: str


@dataclass(frozen=True, slots=True)
class Ignored:
    why: str


def sign(secret: str, body: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, "sha256").hexdigest()


def is_genuine(secret: str, header: str | None, body: bytes) -> bool:
    return header is not None and hmac.compare_digest(sign(secret, body).encode(), header.encode())


def about(event: str, payload: Mapping[str, Any]) -> About | Ignored:
    """Pull requests send `issue_comment` too, and have a `pull_request` in their issue."""
    if event not in EVENTS:
        return Ignored(f"{event or 'no event'} is nothing to answer")
    match payload:
        case {"issue": {"pull_request": _}}:
            return Ignored("a pull request")
        case {"issue": {"number": int(number)}, "repository": {"full_name": str(name)}}:
            return About(f"{name}#{number}")
        case _:
            return Ignored("it names no issue")

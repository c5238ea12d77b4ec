"""An issue, and what its events make of it. Nothing here waits or writes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trunkline.mailbox import Event, Parked


@dataclass(frozen=True, slots=True)
class Comment:
    id: int
    author: str
    is_bot: bool
    body: str


@dataclass(frozen=True, slots=True)
class Issue:
    title: str = ""
    body: str = ""
    author: str = ""
    state: str = "open"
    labels: tuple[str, ...] = ()
    # By id, in the order in which they were written.
    discussions: dict[int, Comment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Folded:
    issue: Issue
    # What people said since we looked last: the text of the issue itself, and comments.
    news: tuple[str, ...]
    parked: tuple[Parked, ...]


def fold(issue: Issue, events: Sequence[Event]) -> Folded:
    """All pending events, in order. One that cannot be read is set aside, and the others count."""
    news: list[str] = []
    parked: list[Parked] = []
    for event in events:
        try:
            issue, said = _apply(issue, event.payload)
        except (KeyError, TypeError, ValueError) as error:
            parked.append(Parked(event.key, event.seq, f"unreadable: {type(error).__name__}: {error}"))
        else:
            news += said
    return Folded(issue, tuple(news), tuple(parked))


def _apply(issue: Issue, hook: dict[str, Any]) -> tuple[Issue, list[str]]:
    issue = _facts(issue, hook["payload"]["issue"])
    action = str(hook["payload"]["action"])
    if hook["event"] == "issue_comment":
        return _commented(issue, action, hook["payload"]["comment"])
    is_said = action in ("opened", "edited", "reopened") and not _is_bot(hook["payload"]["sender"])
    return issue, [f"{issue.title}\n\n{issue.body}"] if is_said else []


def _facts(issue: Issue, told: dict[str, Any]) -> Issue:
    """Every webhook carries the issue as it was at that moment."""
    return replace(
        issue,
        title=str(told["title"]),
        body=told["body"] or "",
        author=str(told["user"]["login"]),
        state=str(told["state"]),
        labels=tuple(str(label["name"]) for label in told["labels"]),
    )


def _commented(issue: Issue, action: str, told: dict[str, Any]) -> tuple[Issue, list[str]]:
    comment = Comment(int(told["id"]), str(told["user"]["login"]), _is_bot(told["user"]), told["body"] or "")
    others = {each.id: each for each in issue.discussions.values() if each.id != comment.id}
    if action == "deleted":
        return replace(issue, discussions=others), []
    discussions = {**issue.discussions, comment.id: comment}
    return replace(issue, discussions=discussions), [] if comment.is_bot else [comment.body]


def _is_bot(user: dict[str, Any]) -> bool:
    """Our own replies come back as webhooks. Answering them would never end."""
    return str(user["type"]) == "Bot"


def to_json(comments: Iterable[Comment]) -> list[dict[str, Any]]:
    return [
        {"id": each.id, "author": each.author, "is_bot": each.is_bot, "body": each.body} for each in comments
    ]


def from_json(rows: Iterable[dict[str, Any]]) -> dict[int, Comment]:
    return {row["id"]: Comment(**row) for row in rows}

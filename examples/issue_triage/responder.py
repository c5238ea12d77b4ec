"""What is answered. Replace `KeywordResponder` by a language model: anything with `respond` will do.

It may take minutes, and fail: no transaction is open, webhooks go on being taken, and what came meanwhile is part of
the next turn. It may be asked twice about the same news, after a crash; only one of its answers is ever posted.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from examples.issue_triage.issues import Issue


class Responder(Protocol):
    async def respond(self, issue: Issue, news: Sequence[str]) -> str | None:
        """The reply to everything that was said since the last one. None: nothing to say."""
        ...


WORDS: Mapping[str, tuple[str, ...]] = {
    "a bug": ("error", "crash", "broken", "fails", "traceback", "bug"),
    "a question": ("how do", "how can", "?"),
    "a wish": ("feature", "would be nice", "please add"),
}


class KeywordResponder:
    """Sorts by words: good enough to see the machinery work."""

    async def respond(self, issue: Issue, news: Sequence[str]) -> str | None:
        if issue.state != "open":
            return None
        text = "\n".join(news).lower()
        kind = next((kind for kind, words in WORDS.items() if any(word in text for word in words)), None)
        if kind is None:
            return None
        lines = [f"Thank you, @{issue.author}. This looks like {kind}."]
        if kind == "a bug" and "version" not in text:
            lines.append("Which version do you use, and what did you do right before?")
        if len(news) > 1:
            lines.append(f"(In answer to all {len(news)} messages.)")
        return "\n\n".join(lines)

"""Requests and answers as docs/reference/api.md prints them."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/reference/api.md"


@dataclass(frozen=True, slots=True)
class Example:
    path: str
    asked: str
    answered: str


def section(label: str) -> str:
    """The part of the page about an endpoint, such as `POST /api/v1/release`."""
    return PAGE.read_text(encoding="utf-8").partition(f"### `{label}`")[2].partition("\n### ")[0]


def examples(label: str) -> list[Example]:
    found = [_example(text) for text in re.findall(r"```http\n(.*?)```", section(label), re.DOTALL)]
    assert found, label
    return found


def _example(text: str) -> Example:
    asked, _, answered = text.partition("\n\n")
    line, _, body = asked.partition("\n")
    return Example(line.partition(" ")[2], body, answered.partition("\n")[2])

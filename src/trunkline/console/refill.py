"""Refills forms: a page that is shown again after a refusal has the values of the form as it was sent.

It works for all forms of the console, which it finds by their action, without changes of templates. The values are in a
cookie of the console that lasts until the next page, like the message about the refusal.
"""

from collections.abc import Mapping
from html import escape
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

# A cookie holds 4 KB. Larger forms are not refilled.
COOKIE_MAX = 3500
# Fields that the page itself puts into every form.
_OWN = frozenset({"token", "back"})
# Fields that are not typed, or must not be shown again.
_UNTYPED = frozenset({"hidden", "password", "file", "submit", "button", "reset"})
# Marks a hidden field that has to be refilled too, such as the request id of a repeated order.
KEPT = "data-typed"
_TICKED = frozenset({"checkbox", "radio"})

Attributes = list[tuple[str, str | None]]


class Typed(NamedTuple):
    """A form that was sent: where to, and its fields that were not empty."""

    action: str
    fields: Mapping[str, str]


def packed(typed: Typed) -> str | None:
    """The value of the cookie; None if it is too long."""
    fields = {name: value for name, value in typed.fields.items() if name not in _OWN}
    text = quote(msgspec.json.encode([typed.action, fields]).decode())
    return text if len(text) <= COOKIE_MAX else None


def unpacked(text: str) -> Typed | None:
    try:
        action, fields = msgspec.json.decode(unquote(text), type=tuple[str, dict[str, str]])
    except msgspec.DecodeError:
        return None
    return Typed(action, fields)


def refilled(page: str, typed: Typed) -> str:
    """The page with its forms of that action filled in, and the <details> around them open."""
    reader = _Reader(typed)
    reader.feed(page)
    reader.close()
    return "".join(reader.pieces)


class _Reader(HTMLParser):
    """Copies everything except the fields of the form."""

    def __init__(self, typed: Typed):
        super().__init__(convert_charrefs=False)
        self.pieces: list[str] = []
        self._typed = typed
        self._is_inside = False
        self._select: str | None = None
        self._skips_text = False
        # Where the <details> begin that are not closed yet.
        self._folded: list[int] = []

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        given = dict(attrs)
        text = self.get_starttag_text() or ""
        if tag == "details":
            self._folded.append(len(self.pieces))
        elif tag == "form" and given.get("action") == self._typed.action:
            self._is_inside = True
            self._unfold()
        elif self._is_inside and tag == "input":
            text = self._input(attrs, text)
        elif self._is_inside and tag == "select":
            self._select = given.get("name")
        elif self._select is not None and tag == "option":
            is_chosen = self._typed.fields.get(self._select, "") == (given.get("value") or "")
            text = _tag(tag, _with(attrs, "selected", "" if is_chosen else None))
        elif self._is_inside and tag == "textarea":
            text += escape(self._typed.fields.get(given.get("name") or "", ""))
            self._skips_text = True
        self.pieces.append(text)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._is_inside = False
        elif tag == "select":
            self._select = None
        elif tag == "textarea":
            self._skips_text = False
        elif tag == "details" and self._folded:
            self._folded.pop()
        self.pieces.append(f"</{tag}>")

    def handle_startendtag(self, tag: str, attrs: Attributes) -> None:
        self.pieces.append(self.get_starttag_text() or "")

    def handle_data(self, data: str) -> None:
        if not self._skips_text:
            self.pieces.append(data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")

    def handle_comment(self, data: str) -> None:
        self.pieces.append(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.pieces.append(f"<!{decl}>")

    def _input(self, attrs: Attributes, text: str) -> str:
        given = dict(attrs)
        kind, name = given.get("type") or "text", given.get("name") or ""
        if not name or (kind in _UNTYPED and KEPT not in given):
            return text
        value = self._typed.fields.get(name)
        if kind in _TICKED:
            is_ticked = value is not None and value == (given.get("value") or "on")
            return _tag("input", _with(attrs, "checked", "" if is_ticked else None))
        # Marked, so that the live part of a page does not write over it.
        return _tag("input", _with(_with(attrs, "value", value or ""), "data-kept", ""))

    def _unfold(self) -> None:
        for place in self._folded:
            if " open" not in self.pieces[place]:
                self.pieces[place] = self.pieces[place].replace("<details", "<details open", 1)


def _with(attrs: Attributes, name: str, value: str | None) -> Attributes:
    """Set or remove one attribute."""
    others = [each for each in attrs if each[0] != name]
    return others if value is None else [*others, (name, value)]


def _tag(tag: str, attrs: Attributes) -> str:
    parts = (f' {name}="{escape(value)}"' if value else f" {name}" for name, value in attrs)
    return f"<{tag}{''.join(parts)}>"

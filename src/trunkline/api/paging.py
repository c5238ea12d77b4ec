"""Pages of a list. A cursor names the last object of the page, and its list."""

import base64
import binascii
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from trunkline.api.errors import ApiError
from trunkline.api.principal import Principal
from trunkline.schema.fields import about
from trunkline.store.tables import LAST_ID as LAST_ID
from trunkline.store.tables import Key

LIMIT_MAX = 200
DIGEST_LENGTH = 8

T = TypeVar("T")


class PageQuery(BaseModel):
    """Size and start of a page. Lists with filters add them."""

    # A misspelt filter would otherwise be ignored.
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(50, ge=1, le=LIMIT_MAX, description="How many objects at most.")
    cursor: str | None = Field(
        None,
        max_length=400,
        description="`next_cursor` of the page before. It only fits the same list with the same filters.",
    )


class PageOut(BaseModel, Generic[T]):
    items: list[T]
    next_cursor: str | None = Field(description="For the page after this one; null on the last page.")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    next_cursor: str | None = field(metadata=about("For the page after this one; null on the last page."))


@dataclass(frozen=True, slots=True)
class Items(Generic[T]):
    """A list in one piece."""

    items: list[T]


class Cursors:
    """The cursors of one list, for one tenant and one set of filters.

    They are neither secret nor signed: a forged one only selects another position in the key's own list.
    """

    def __init__(self, name: str, who: Principal, query: PageQuery):
        self._limit = query.limit
        self._given = query.cursor
        filters = query.model_dump(mode="json", exclude={"limit", "cursor"})
        identity = repr((name, who.tenant, sorted(filters.items())))
        self._digest = hashlib.sha256(identity.encode()).digest()[:DIGEST_LENGTH]

    @property
    def fetch_limit(self) -> int:
        """One more than the page: its presence shows that there is another page."""
        return self._limit + 1

    def start(self, first: Key) -> Key:
        return self.start_key(first) if isinstance(first, str) else self.start_id(first)

    def start_id(self, first: UUID) -> UUID:
        text = self.start_key("")
        try:
            return UUID(text) if text else first
        except ValueError:
            raise _bad_cursor() from None

    def start_number(self, first: int) -> int:
        """For lists whose ids are numbers, up to `first`."""
        text = self.start_key("")
        if not text:
            return first
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= first):
            raise _bad_cursor()
        return int(text)

    def start_wall(self, first: datetime) -> datetime:
        """For lists by wall time, which has no zone."""
        try:
            return datetime.fromisoformat(self.start_key(first.isoformat())).replace(tzinfo=None)
        except ValueError:
            raise _bad_cursor() from None

    def start_key(self, first: str) -> str:
        if self._given is None:
            return first
        try:
            raw = base64.b64decode(self._given, altchars=b"-_", validate=True)
            key = raw[DIGEST_LENGTH:].decode("ascii")
        except (binascii.Error, ValueError):
            raise _bad_cursor() from None
        if raw[:DIGEST_LENGTH] != self._digest or not key or not key.isprintable():
            raise _bad_cursor()
        return key

    def page(self, rows: Sequence[T], key: Callable[[T], Any]) -> Page[T]:
        items = list(rows[: self._limit])
        return Page(items, self._after(str(key(items[-1]))) if len(rows) > self._limit else None)

    def _after(self, key: str) -> str:
        return base64.urlsafe_b64encode(self._digest + key.encode()).decode()


def _bad_cursor() -> ApiError:
    return ApiError(
        400,
        "bad_cursor",
        "This cursor is not of this list with these filters. Start again without a cursor.",
    )

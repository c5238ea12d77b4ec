"""Shared parts of the client's methods."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from trunkline.client import models
from trunkline.client.errors import Unreachable
from trunkline.client.models import T
from trunkline.client.transport import Transport

ROOT = "/api/v1"
PAGE_SIZE_MAX = 200


class Calls:
    def __init__(self, transport: Transport):
        self._transport = transport

    async def _create(self, shape: type[T], what: str, **values: Any) -> T:
        return decoded(shape, await self._transport.post(f"{ROOT}/{what}", given(**values)))

    async def _get(self, shape: type[T], what: str, key: object) -> T:
        return decoded(shape, await self._transport.get(path(what, key)))

    async def _change(self, shape: type[T], what: str, key: object, changes: dict[str, Any]) -> T:
        return decoded(shape, await self._transport.patch(path(what, key), changes))

    async def _list_all(self, shape: type[T], what: str, page_size: int, **filters: Any) -> AsyncIterator[T]:
        """Every object of a list, page by page."""
        cursor: str | None = None
        while True:
            query = given(**filters, limit=page_size, cursor=cursor)
            page = await self._transport.get(f"{ROOT}/{what}", query)
            for item in page["items"]:
                yield decoded(shape, item)
            cursor = page["next_cursor"]
            if cursor is None:
                return


def path(what: str, key: object, *more: str) -> str:
    return "/".join((ROOT, what, quote(str(key), safe=""), *more))


def given(**values: Any) -> dict[str, Any]:
    """Omits None values, for which the API has defaults."""
    return {name: value for name, value in values.items() if value is not None}


def decoded(shape: type[T], data: Any) -> T:
    try:
        return models.decode(shape, data)
    except ValueError as error:
        raise Unreachable(f"answered with something that is not understood: {error}") from error

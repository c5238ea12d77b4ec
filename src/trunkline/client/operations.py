"""An operation of the API, declared once as a method of both clients.

    create_pool = creating(NewPool, Pool, "pools")
    why = Operation(leads.why)

`await client.create_pool("main", "Main numbers")` with `TrunklineClient`, the same without `await` with
`SyncTrunklineClient`. The arguments of `create_pool` are those of `NewPool`.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from string import Formatter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload
from urllib.parse import quote, urlencode
from uuid import UUID

from trunkline.client.background_loop import BackgroundLoop
from trunkline.client.decoding import decoded
from trunkline.client.transport import Transport

P = ParamSpec("P")
T = TypeVar("T")
Key = UUID | str

ROOT = "/api/v1"
PAGE_SIZE_MAX = 200
DOWNLOAD_TIMEOUT_S = 3600.0


class AsyncCaller:
    """A client whose methods are coroutines."""

    def __init__(self, transport: Transport):
        self.transport = transport

    async def close(self) -> None:
        await self.transport.close()


class SyncCaller:
    """A client whose methods block. Their requests run on a loop in a thread of their own, so it is thread-safe."""

    def __init__(self, transport: Transport):
        self.transport = transport
        self._loop = BackgroundLoop("trunkline client")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        while (item := self.run(_next(items))) is not None:
            yield item

    def close(self) -> None:
        self._loop.close(self.transport.close)


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


class Operation(Generic[P, T]):
    """A request with one response."""

    def __init__(self, call: Callable[Concatenate[Transport, P], Coroutine[Any, Any, T]]):
        self.call = call
        self.__doc__ = call.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> "Operation[P, T]": ...

    @overload
    def __get__(self, client: AsyncCaller, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, client: SyncCaller, owner: type) -> Callable[P, T]: ...

    def __get__(self, client: AsyncCaller | SyncCaller | None, owner: type) -> Any:
        if client is None:
            return self
        if isinstance(client, AsyncCaller):
            return lambda *args, **kwargs: self.call(client.transport, *args, **kwargs)
        return lambda *args, **kwargs: client.run(self.call(client.transport, *args, **kwargs))


class Listing(Generic[P, T]):
    """All items of a list, page by page as they are read."""

    def __init__(self, call: Callable[Concatenate[Transport, P], AsyncIterator[T]]):
        self.call = call
        self.__doc__ = call.__doc__

    @overload
    def __get__(self, client: None, owner: type) -> "Listing[P, T]": ...

    @overload
    def __get__(self, client: AsyncCaller, owner: type) -> Callable[P, AsyncIterator[T]]: ...

    @overload
    def __get__(self, client: SyncCaller, owner: type) -> Callable[P, Iterator[T]]: ...

    def __get__(self, client: AsyncCaller | SyncCaller | None, owner: type) -> Any:
        if client is None:
            return self
        if isinstance(client, AsyncCaller):
            return lambda *args, **kwargs: self.call(client.transport, *args, **kwargs)
        return lambda *args, **kwargs: client.iterate(self.call(client.transport, *args, **kwargs))


def creating(new: Callable[P, object], shape: type[T], what: str) -> Operation[P, T]:
    """`new` is the body's class: its arguments are the method's. None counts as omitted, as the API has a default."""
    signature = inspect.signature(new)

    async def create(api: Transport, /, *args: P.args, **kwargs: P.kwargs) -> T:
        body = signature.bind(*args, **_renamed(kwargs, what)).arguments
        return decoded(shape, await api.post(f"{ROOT}/{what}", given(**body)))

    return Operation(create)


def _renamed(kwargs: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The id of a new pool may be named `pool_id`, as the other methods name it."""
    own = f"{what.removesuffix('s')}_id"
    return {"id" if name == own else name: value for name, value in kwargs.items()}


def getting(shape: type[T], what: str, *more: str) -> Operation[[Key], T]:
    return calling("GET", _of_one(what, *more), shape)


def listing(shape: type[T], what: str, filters: Callable[P, object]) -> Listing[P, T]:
    """`filters` has the arguments of the method: the filters of the list. One that is None does not filter."""
    signature = inspect.signature(filters)

    def select(api: Transport, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return pages(api, shape, what, **signature.bind(*args, **kwargs).arguments)

    return Listing(select)


def changing(change: Callable[P, object], shape: type[T], what: str) -> Operation[Concatenate[Key, P], T]:
    """`change` is the body's class. Omitted fields do not change."""
    signature = inspect.signature(change)

    async def update(api: Transport, /, *key: Key, **changes: Any) -> T:
        where = _of_one(what)
        which = _places(_names(where), key, changes)
        body = signature.bind(**changes).arguments
        return decoded(shape, await api.patch(_address(where).format(**which), plain(body)))

    # The key may also be named, which a type cannot say beside the fields of the change.
    return cast(Operation[Concatenate[Key, P], T], Operation(update))


def posting(shape: type[T], what: str, *more: str) -> Operation[[Key], T]:
    """An action without arguments on one object."""
    return calling("POST", _of_one(what, *more), shape)


def deleting(what: str) -> Operation[[Key], None]:
    return calling("DELETE", _of_one(what))


def _of_one(what: str, *more: str) -> str:
    return "/".join((what, f"{{{what.removesuffix('s')}_id}}", *more))


@overload
def calling(method: str, where: str) -> Operation[..., Any]: ...


@overload
def calling(method: str, where: str, shape: type[T]) -> Operation[..., T]: ...


def calling(method: str, where: str, shape: Any = None) -> Operation[..., Any]:
    """The values of the {places} in its path come first; named arguments are the body, or the query of a GET or DELETE.
    The response is a value of `shape`, or JSON as it is; None if it has no body."""
    names = _names(where)
    sends_body = method in ("POST", "PUT", "PATCH")

    async def call(api: Transport, *args: object, **kwargs: Any) -> Any:
        values = _places(names, args, kwargs)
        options = {"json": plain(kwargs)} if sends_body else {"params": _query(kwargs)}
        answer = await api.ask(method, _address(where).format(**values), **options)
        return answer if answer is None or shape is None else decoded(shape, answer)

    return Operation(call)


def returning_items(shape: type[T], operation: Operation[P, Any]) -> Operation[P, list[T]]:
    """The same operation, whose response is a list in one piece, with values of this class."""

    async def call(api: Transport, /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        return [decoded(shape, item) for item in (await operation.call(api, *args, **kwargs))["items"]]

    return Operation(call)


def downloading(where: str) -> Listing[..., bytes]:
    """A response of any size, in pieces. Arguments as those of `calling`, without a body."""
    names = _names(where)

    def download(api: Transport, *args: object, **kwargs: Any) -> AsyncIterator[bytes]:
        values = _places(names, args, kwargs)
        query = f"?{urlencode(_query(kwargs))}" if kwargs else ""
        return api.download(f"{_address(where).format(**values)}{query}", DOWNLOAD_TIMEOUT_S)

    return Listing(download)


@overload
def calling_list(where: str) -> Listing[..., dict[str, Any]]: ...


@overload
def calling_list(where: str, shape: type[T]) -> Listing[..., T]: ...


def calling_list(where: str, shape: Any = None) -> Listing[..., Any]:
    """All items of a list. Arguments and items as those of `calling`."""
    names = _names(where)

    def select(api: Transport, *args: object, **kwargs: Any) -> AsyncIterator[Any]:
        values = _places(names, args, kwargs)
        return pages(api, shape, where.format(**values), **_query(kwargs))

    return Listing(select)


def _names(where: str) -> list[str]:
    return [name for _, name, _, _ in Formatter().parse(where) if name]


def _address(where: str) -> str:
    """Under the root of the API, unless it begins at the server's."""
    return where if where.startswith("/") else f"{ROOT}/{where}"


def _places(names: list[str], args: tuple[object, ...], kwargs: dict[str, Any]) -> dict[str, str]:
    """The values of the places, by position or taken out of the named arguments."""
    values = dict(zip(names, args, strict=False))
    values |= {name: kwargs.pop(name) for name in names[len(args) :] if name in kwargs}
    if len(args) > len(names) or len(values) < len(names):
        raise TypeError(f"give {', '.join(names) or 'no positional argument'}")
    return {name: quote(str(value), safe="") for name, value in values.items()}


def _query(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in given(**values).items()
    }


async def pages(
    api: Transport, shape: Any, what: str, *, page_size: int = PAGE_SIZE_MAX, **filters: Any
) -> AsyncIterator[Any]:
    cursor: str | None = None
    while True:
        page = await api.get(f"{ROOT}/{what}", given(**filters, limit=page_size, cursor=cursor))
        for item in page["items"]:
            yield item if shape is None else decoded(shape, item)
        cursor = page["next_cursor"]
        if cursor is None:
            return


def path(what: str, key: object, *more: str) -> str:
    return "/".join((ROOT, what, quote(str(key), safe=""), *more))


def given(**values: Any) -> dict[str, Any]:
    """Omits None values, for which the API has defaults."""
    return plain({name: value for name, value in values.items() if value is not None})


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has it."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return moment(value)
        case UUID():
            return str(value)
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value


def moment(value: datetime) -> str:
    if value.tzinfo is None:
        raise ValueError("a moment needs a time zone")
    return value.isoformat()

"""The open transaction of an application, whatever its driver is: a function of ours runs in it.

The function takes one text and returns one text, so an adapter needs three things of its driver: how to call a
function, how to see that no transaction is open, and whether the driver reports a commit. An adapter is imported with
the first connection of its driver: nothing here needs SQLAlchemy, psycopg or Django.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from trunkline.errors import MigrationError, NotInTransaction
from trunkline.store.migrate import quoted

# The package that defines the class of a connection, and so the module here that adapts it.
DRIVERS = ("asyncpg", "psycopg", "sqlalchemy", "django")
# Postgres's codes for missing tables or functions.
_MISSING = frozenset({"3F000", "42883", "42P01"})  # a schema, a function, a table


class Adapter(Protocol):
    def after_commit(self, then: Callable[[], None]) -> bool:
        """Call `then` once the transaction is committed, and never if it is not. False if the driver does not report
        commits. Called too early, `then` must do no harm."""
        ...


@runtime_checkable
class AsyncAdapter(Adapter, Protocol):
    async def call_async(self, function: str, text: str) -> str:
        """Call a function in the open transaction, or raise `NotInTransaction`."""
        ...


@runtime_checkable
class SyncAdapter(Adapter, Protocol):
    def call(self, function: str, text: str) -> str:
        """Call a function in the open transaction, or raise `NotInTransaction`."""
        ...


async def call_async(
    tx: Any, schema: str | None, function: str, texts: Iterable[str]
) -> tuple[Adapter, list[str]]:
    """Call a function in the open transaction, once for each text."""
    adapter = _adapter(tx)
    if not isinstance(adapter, AsyncAdapter):
        raise NotInTransaction(
            f"{_name(tx)} is synchronous and would block the event loop. Use the method of this name that ends in "
            "_sync, in a thread."
        )
    with _missing_tables_named(schema):
        return adapter, [await adapter.call_async(_qualified(schema, function), text) for text in texts]


def call_sync(tx: Any, schema: str | None, function: str, texts: Iterable[str]) -> tuple[Adapter, list[str]]:
    adapter = _adapter(tx)
    if not isinstance(adapter, SyncAdapter):
        raise NotInTransaction(
            f"{_name(tx)} is asynchronous. Use the method of this name without _sync, and await it."
        )
    with _missing_tables_named(schema):
        return adapter, [adapter.call(_qualified(schema, function), text) for text in texts]


def refusal(what: str, begin: str) -> NotInTransaction:
    """It would be committed at once, even if the change that it follows from is not."""
    return NotInTransaction(f"{what} is in no transaction. Begin one first: {begin}")


def _adapter(tx: Any) -> Any:
    for cls in type(tx).__mro__:
        package = cls.__module__.partition(".")[0]
        if package in DRIVERS:
            return import_module(f"{__name__}.{package}").adapt(tx)
    raise NotInTransaction(
        f"{_name(tx)} is no transaction that is known here. Give a connection of asyncpg or psycopg 3, a session or "
        "connection of SQLAlchemy 2, or Django's connection."
    )


def _qualified(schema: str | None, function: str) -> str:
    return function if schema is None else f"{quoted(schema)}.{function}"


def _name(tx: Any) -> str:
    return f"{type(tx).__module__}.{type(tx).__qualname__}"


@contextmanager
def _missing_tables_named(schema: str | None) -> Iterator[None]:
    """Say so if that is the cause, however the driver and the layers above it have wrapped it."""
    try:
        yield
    except Exception as error:
        cause: Any = error
        while cause is not None:
            if getattr(cause, "sqlstate", None) in _MISSING:
                where = "on the search path" if schema is None else f"in schema {schema}"
                raise MigrationError(
                    f"The tables are not there, or older than this library: {where}. `await prepare()`, or "
                    f"prepare_sync(), makes them, with a role that may. Postgres says: {cause}"
                ) from error
            cause = getattr(cause, "orig", None) or cause.__cause__
        raise

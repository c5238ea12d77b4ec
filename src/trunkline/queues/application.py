"""The base of the objects that an application has, `Jobs` and `Mailboxes`.

To write in a transaction of the application such an object need not be open: it uses the application's connection, and
sends wakeups from a thread of its own. Open, it has pools of its own, each for what must not wait for the others.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from trunkline.errors import StoreUnavailable
from trunkline.event_loop import LoopThread, running_loop, wait_for_stop_signal
from trunkline.store import database as store_database
from trunkline.store.database import Database
from trunkline.store.migrate import migrate, search_path_with


class Notifier(Protocol):
    async def close(self) -> None: ...


NotifierT = TypeVar("NotifierT", bound=Notifier)
OpenedT = TypeVar("OpenedT", bound="OpenObject[Any]")


@dataclass(eq=False)
class OpenObject(Generic[NotifierT]):
    """What an open object holds, and the loop that it was opened in."""

    notifier: NotifierT
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop, init=False)


class ApplicationQueue(ABC, Generic[NotifierT, OpenedT]):
    # The tables that it needs, and its name in messages.
    area: ClassVar[str]

    def __init__(self, database_url: str, schema: str | None, *, behind_pooler: bool):
        self.schema = schema
        self._url = database_url
        self._behind_pooler = behind_pooler
        self._thread: LoopThread[NotifierT] = LoopThread(f"trunkline {self.area}", self._make_notifier)
        self._open: OpenedT | None = None
        self._closing = AsyncExitStack()

    @abstractmethod
    def _make_notifier(self) -> NotifierT:
        """With a connection of its own."""

    @abstractmethod
    async def _connect(self, stack: AsyncExitStack, search_path: str | None) -> OpenedT:
        """Open what `stack` closes."""

    @abstractmethod
    def _working(self) -> AbstractAsyncContextManager[object]:
        """Run handlers until the end of the block."""

    async def prepare(self) -> list[str]:
        """Create or migrate the tables, as opening the object does; returns the names of the migrations. The role must
        be allowed to create tables; if none is missing, nothing is written."""
        return await migrate(self._url, area=self.area, schema=self.schema)

    def prepare_sync(self) -> list[str]:
        return asyncio.run(self.prepare())

    def close(self) -> None:
        """For a synchronous process: send the last wakeups and end the thread that sends them. A process that ends
        without it loses at most those wakeups, and a worker finds the work within a second."""
        self._thread.close(lambda notifier: notifier.close())

    async def __aenter__(self) -> Self:
        assert self._open is None, "open already"
        await self.prepare()
        path = None if self.schema is None else await search_path_with(self._url, self.schema)
        async with AsyncExitStack() as stack:
            self._open = await self._connect(stack, path)
            self._closing = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened()
        self._open = None
        await self._closing.aclose()

    async def run(self) -> None:
        """Run handlers until SIGTERM, SIGINT or a cancellation; then the worker finishes or returns what runs. Opens
        the object if it is not open."""
        async with AsyncExitStack() as stack:
            if self._open is None:
                await stack.enter_async_context(self)
            await stack.enter_async_context(self._working())
            await wait_for_stop_signal()

    async def _pool(self, stack: AsyncExitStack, name: str, size: int, search_path: str | None) -> Database:
        database = await store_database.connect(
            self._url,
            pool_size=size,
            behind_pooler=self._behind_pooler,
            application_name=name,
            search_path=search_path,
        )
        stack.push_async_callback(database.close)
        return database

    def _notify(self, wake: Callable[[NotifierT], None]) -> None:
        """In the loop of the open object, or in the thread of a closed one. Never waits, in any thread."""
        if self._open is None:
            self._thread.call(wake)
        elif self._open.loop is running_loop():
            wake(self._open.notifier)
        else:
            self._open.loop.call_soon_threadsafe(wake, self._open.notifier)

    def _opened(self) -> OpenedT:
        if self._open is None:
            raise StoreUnavailable(
                f"These {self.area} are not open: `async with {self.area}:` around what uses them."
            )
        return self._open

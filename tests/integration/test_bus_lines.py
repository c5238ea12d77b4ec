"""Connections that are kept: a reply is never taken for another's, whatever the network does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from trunkline.bus import connection, nudges, packing
from trunkline.bus.connection import Bus
from trunkline.bus.keys import Keys
from trunkline.bus.line import Lines
from trunkline.bus.scripts import Script
from trunkline.errors import BusUnavailable
from trunkline.testing.proxy import TcpProxy
from trunkline.testing.waiting import eventually

ECHO = Script("echo", "#!lua\nreturn ARGV[1]", "3a8485c1393a4c5f62edc979750b8f5dde1d2de7")


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[TcpProxy]:
    async with TcpProxy.before(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def bus(proxy: TcpProxy, key_prefix: str) -> AsyncIterator[Bus]:
    bus = connection.connect(proxy.url, Keys(prefix=key_prefix))
    yield bus
    await bus.close()


async def echo(bus: Bus) -> bool:
    word = uuid4().hex
    return bool(await bus.run(ECHO, [bus.keys.bell], [word]) == word)


async def test_one_that_the_server_closed_meanwhile_is_opened_again_before_it_is_used(
    bus: Bus, proxy: TcpProxy
) -> None:
    lines = Lines(bus.client)
    assert await lines.ask("ECHO", "before") == "before"
    (kept,) = lines._kept
    proxy.cut(reset=False)
    await eventually(kept._parser.can_read)
    assert await lines.ask("ECHO", "after") == "after"


async def test_a_reply_that_comes_too_late_is_nobodys(
    bus: Bus, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await echo(bus)
    proxy.black_hole(to_server=False)
    (kept,) = bus._pipe._lines._kept
    with monkeypatch.context() as hurried:
        hurried.setattr(kept, "socket_timeout", 0.2)
        with pytest.raises(BusUnavailable, match="no answer within"):
            await echo(bus)
    await proxy.heal()
    assert await echo(bus)


async def test_the_reply_to_a_command_that_was_given_up_is_nobodys(bus: Bus, proxy: TcpProxy) -> None:
    lines = Lines(bus.client)
    assert await lines.ask("ECHO", "first") == "first"
    proxy.black_hole(to_server=False)
    asked = asyncio.create_task(lines.ask("ECHO", "given up"))
    await proxy.saw_reply()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await proxy.heal()
    assert await lines.ask("ECHO", "last") == "last"


async def test_a_command_that_fails_takes_no_other_with_it(bus: Bus) -> None:
    replies = await Lines(bus.client).exchange([("ECHO", "a"), ("NO-SUCH-COMMAND",), ("ECHO", "b")])
    assert replies[0] == "a"
    assert isinstance(replies[1], Exception)
    assert replies[2] == "b"


async def test_a_pool_of_one_has_room_for_scripts_and_plain_commands(redis_url: str, key_prefix: str) -> None:
    bus = connection.connect(redis_url, Keys(prefix=key_prefix), pool_size=1)
    assert await echo(bus)
    assert await bus.read(bus.client.exists(bus.keys.bell)) == 0
    assert await echo(bus)
    await bus.close()


async def test_many_at_once_have_a_connection_each(bus: Bus) -> None:
    lines = Lines(bus.client)
    words = [uuid4().hex for _ in range(8)]
    assert await asyncio.gather(*(lines.ask("ECHO", word) for word in words)) == words


async def test_nudges_are_read_as_they_come_over_the_wire(valkey_cluster: Any, redis_url: str) -> None:
    for url, is_cluster in ((redis_url, False), (valkey_cluster[0], True)):
        bus = connection.connect(url, Keys(prefix=uuid4().hex), cluster=is_cluster)
        assert await nudges.receive(bus, "k", "w", count=9, timeout_s=0) == nudges.Nudges(), "makes the group"
        await nudges.send(bus, "k", ["a", "b", "a"])
        heard = await nudges.receive(bus, "k", "w", count=9, timeout_s=1)
        assert heard.keys == ("a", "b")
        assert len(heard.ids) == 3
        assert await nudges.receive(bus, "k", "w", count=9, timeout_s=0.01) == nudges.Nudges()
        await bus.close()


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("redis://localhost", packing.PackingConnection),
        ("rediss://localhost", packing.PackingTlsConnection),
        ("unix:///tmp/valkey.sock", packing.PackingUnixConnection),
    ],
)
async def test_every_kind_of_url_gets_connections_of_ours(url: str, wanted: type[packing.Packing]) -> None:
    bus = connection.connect(url, Keys())
    client: Any = bus.client
    assert isinstance(client.connection_pool.make_connection(), wanted)
    await bus.close()


async def test_a_command_is_told_the_life_of_the_server_that_gets_it(bus: Bus) -> None:
    lines = Lines(bus.client)
    info = await lines.ask("INFO", "server")
    assert f"run_id:{await lines.ask('ECHO', packing.LIFE)}\r" in info


async def test_another_life_of_the_server_is_told_from_the_first_command_on(valkey_cluster: Any) -> None:
    """Behind the same address another process answers: as after a restart, with the connection broken in between."""
    node, other = valkey_cluster[0], urlsplit(valkey_cluster[1])
    async with TcpProxy.before(node) as proxy:
        bus = connection.connect(proxy.url, Keys())
        lines = Lines(bus.client)
        first = await lines.ask("ECHO", packing.LIFE)
        (kept,) = lines._kept
        proxy.upstream = other.hostname or "", other.port or 0
        proxy.cut(reset=False)
        await eventually(kept._parser.can_read)
        second = await lines.ask("ECHO", packing.LIFE)
        assert f"run_id:{second}\r" in await lines.ask("INFO", "server")
        assert first != second
        await bus.close()

"""The proxy does what it says, before a real Valkey and a real Postgres."""

import asyncio
import socket
from collections.abc import AsyncIterator

import asyncpg
import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from tests.support.faults.proxy import RESET_ON_CLOSE, TcpProxy


def plain_client(url: str) -> "Redis":
    return Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=None)


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[TcpProxy]:
    async with TcpProxy.before(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: TcpProxy) -> AsyncIterator["Redis"]:
    """Through the proxy, connected."""
    async with plain_client(proxy.url) as client:
        await client.ping()
        yield client


@pytest.fixture
async def direct(redis_url: str) -> AsyncIterator["Redis"]:
    async with plain_client(redis_url) as client:
        yield client


async def test_without_a_fault_the_proxy_passes_everything_through(client: "Redis", key_prefix: str) -> None:
    big = b"x" * 1_000_000
    assert await client.set(f"{key_prefix}:a", big)
    assert await client.get(f"{key_prefix}:a") == big


async def test_a_swallowed_reply_is_lost_after_its_effect(
    proxy: TcpProxy, client: "Redis", direct: "Redis", key_prefix: str
) -> None:
    proxy.swallow_reply(after=b"INCR")
    with pytest.raises(RedisConnectionError):
        await client.incr(f"{key_prefix}:n")
    await proxy.swallowed()
    assert await direct.get(f"{key_prefix}:n") == b"1"
    assert await client.incr(f"{key_prefix}:n") == 2, "only one reply is swallowed"


async def test_a_swallowed_reply_waits_for_the_named_request(
    proxy: TcpProxy, client: "Redis", key_prefix: str
) -> None:
    proxy.swallow_reply(after=b"INCR")
    assert await client.set(f"{key_prefix}:n", 5)
    with pytest.raises(RedisConnectionError):
        await client.incr(f"{key_prefix}:n")


async def test_a_black_hole_holds_requests_back_until_it_is_healed(
    proxy: TcpProxy, client: "Redis", direct: "Redis", key_prefix: str
) -> None:
    proxy.black_hole(to_client=False)
    request = asyncio.ensure_future(client.incr(f"{key_prefix}:n"))
    await proxy.saw_request()
    assert await direct.get(f"{key_prefix}:n") is None
    assert not request.done()
    await proxy.heal()
    assert await request == 1


async def test_a_black_hole_for_replies_lets_the_effect_happen(
    proxy: TcpProxy, client: "Redis", direct: "Redis", key_prefix: str
) -> None:
    proxy.black_hole(to_server=False)
    request = asyncio.ensure_future(client.incr(f"{key_prefix}:n"))
    await proxy.saw_reply()
    assert await direct.get(f"{key_prefix}:n") == b"1"
    assert not request.done()
    await proxy.heal()
    assert await request == 1


async def test_a_black_hole_accepts_new_connections_and_answers_nothing(proxy: TcpProxy) -> None:
    proxy.black_hole()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(b"PING\r\n")
    await proxy.saw_connection()
    await proxy.saw_request()
    answer = asyncio.create_task(reader.read(100))
    assert not proxy.to_client.seen.is_set(), "the server was not even asked"
    await proxy.heal()
    assert b"NOAUTH" in await answer
    writer.close()
    await writer.wait_closed()


async def test_a_cut_with_reset_is_seen_as_a_reset(proxy: TcpProxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    await proxy.saw_connection()
    proxy.cut(reset=True)
    with pytest.raises(ConnectionResetError):
        await reader.read(100)
    writer.close()


async def test_a_cut_with_fin_is_seen_as_an_end(proxy: TcpProxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    await proxy.saw_connection()
    proxy.cut(reset=False)
    assert await reader.read(100) == b""
    writer.close()
    await writer.wait_closed()


async def test_an_end_for_a_peer_that_has_just_reset_is_no_error(proxy: TcpProxy) -> None:
    """No turn of the loop between the two: the proxy cannot know yet."""
    with socket.create_connection(("127.0.0.1", proxy.port)) as gone:
        await proxy.saw_connection()
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    proxy.cut(reset=False)
    async with plain_client(proxy.url) as another:
        assert await another.ping()


@pytest.mark.parametrize("reset", [True, False])
async def test_a_cut_ends_the_command_under_way(proxy: TcpProxy, client: "Redis", reset: bool) -> None:
    proxy.black_hole()
    request = asyncio.ensure_future(client.ping())
    await proxy.saw_request()
    proxy.cut(reset=reset)
    with pytest.raises(RedisConnectionError):
        await request
    await proxy.heal()
    assert await client.ping()


async def test_refusing_leaves_open_connections_alone(proxy: TcpProxy, client: "Redis") -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await client.ping()
    port = proxy.port
    await proxy.heal()
    assert proxy.port == port
    async with plain_client(proxy.url) as another:
        assert await another.ping()


async def test_a_delayed_request_is_under_way_until_the_delay_is_over(
    proxy: TcpProxy, client: "Redis", direct: "Redis", key_prefix: str
) -> None:
    proxy.delay(to_server_s=3600)
    request = asyncio.ensure_future(client.incr(f"{key_prefix}:n"))
    await proxy.saw_request()
    assert await direct.get(f"{key_prefix}:n") is None
    proxy.delay(to_server_s=0.01, to_client_s=0.01)
    assert await request == 1


async def test_nothing_overtakes_what_is_delayed(proxy: TcpProxy) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    proxy.delay(to_server_s=0.05)
    writer.write(b"first\r\n")
    await proxy.saw_request()
    proxy.delay(to_server_s=0.01)
    writer.write(b"AUTH nonsense\r\n")
    assert b"NOAUTH" in await reader.readline()
    assert b"WRONGPASS" in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_a_server_that_is_gone_resets_its_clients() -> None:
    listener = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    async with TcpProxy("127.0.0.1", port) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()


async def test_a_commit_whose_reply_is_lost_has_happened(empty_database_url: str) -> None:
    direct = await asyncpg.connect(empty_database_url)
    await direct.execute("CREATE TABLE leads (id int)")
    async with TcpProxy.before(empty_database_url) as proxy:
        connection = await asyncpg.connect(proxy.url)
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO leads VALUES (1)")
        proxy.swallow_reply(after=b"COMMIT")
        with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
            await connection.execute("COMMIT")
        await proxy.swallowed()
        connection.terminate()
    assert await direct.fetchval("SELECT count(*) FROM leads") == 1
    await direct.close()


async def test_a_commit_that_never_arrives_has_not_happened(empty_database_url: str) -> None:
    direct = await asyncpg.connect(empty_database_url)
    await direct.execute("CREATE TABLE leads (id int)")
    async with TcpProxy.before(empty_database_url) as proxy:
        connection = await asyncpg.connect(proxy.url)
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO leads VALUES (1)")
        proxy.black_hole()
        commit = asyncio.create_task(connection.execute("COMMIT"))
        await proxy.saw_request()
        proxy.cut()
        with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
            await commit
        connection.terminate()
    assert await direct.fetchval("SELECT count(*) FROM leads") == 0
    await direct.close()

"""What an allocation costs at the least: endpoints of the same framework that read the body, run one script, insert one
row and answer.

The script does as many commands as ours, over our own connection, on which the scripts of many requests travel
together; no key is checked, nothing is decided or measured. `inserting` puts a row in Postgres too, over a connection
of our own pool, which does not wait for the disk: the rows of ours do not either. `shared` runs the script alone.
"""

import asyncio
import hashlib
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trunkline.bus.connection import connect
from trunkline.bus.keys import Keys
from trunkline.bus.scripts import Script
from trunkline.store.database import Database
from trunkline.store.database import connect as connect_database

# As many commands as ours make (an allocation 16, a release 26), of the same kinds and on keys like theirs.
SOURCE = """#!lua
local pod, lease = KEYS[1] .. ':pod:' .. ARGV[1], KEYS[1] .. ':lease:' .. ARGV[1]
redis.call('TIME')
for n = 1, 2 do redis.call('EXISTS', lease, pod) end
for n = 1, 3 do redis.call('HMGET', pod, 'status', 'call', 'at') end
for n = 1, 2 do redis.call('HGET', pod, 'status') end
for n = 1, 2 do redis.call('GET', lease) end
redis.call('TYPE', KEYS[1] .. ':set')
redis.call('SADD', KEYS[1] .. ':set', ARGV[1])
redis.call('SREM', KEYS[1] .. ':set', ARGV[1])
redis.call('ZADD', KEYS[1] .. ':order', 1, ARGV[1])
redis.call('ZPOPMIN', KEYS[1] .. ':order')
redis.call('ZREM', KEYS[1] .. ':order', ARGV[1])
for n = 1, 2 do redis.call('HSET', pod, 'status', 'x', 'call', ARGV[1], 'at', '1', 'source', 'standard') end
redis.call('HDEL', pod, 'at')
redis.call('EXPIRE', pod, 600)
redis.call('SET', lease, ARGV[2], 'EX', 600)
redis.call('DEL', lease)
return {'done', ARGV[1], ARGV[2]}
"""


class Body(msgspec.Struct):
    call_sid: str
    merchant_id: str = ""


Run = Callable[[str, str], Awaitable[Any]]

TABLE = "CREATE TABLE IF NOT EXISTS bare (id uuid PRIMARY KEY, call text NOT NULL)"
INSERT = "INSERT INTO bare (id, call) VALUES ($1::uuid, $2)"


def shared() -> Run:
    bus = connect(os.environ["REDIS_URL"], Keys())
    lua = Script("bare", SOURCE, hashlib.sha1(SOURCE.encode()).hexdigest())
    return lambda call_sid, allocation_id: bus.run(lua, ["bare"], [call_sid, allocation_id])


def inserting() -> Run:
    run, opening = shared(), asyncio.Lock()
    opened: list[Database] = []

    async def database() -> Database:
        async with opening:
            if not opened:
                opened.append(await connect_database(os.environ["DATABASE_URL"], pool_size=10))
        return opened[0]

    async def run_and_insert(call_sid: str, allocation_id: str) -> Any:
        answer = await run(call_sid, allocation_id)
        async with (await database()).connection() as conn:
            await conn.execute(INSERT, allocation_id, call_sid)
        return answer

    return run_and_insert


def application(run_script: Run) -> Starlette:
    async def run(request: Request) -> Response:
        body = msgspec.json.decode(await request.body(), type=Body)
        answer = await run_script(body.call_sid, uuid4().hex)
        content = {
            "success": True,
            "allocation": {"pod_name": answer[1], "ws_url": f"wss://x/{answer[1]}/{answer[2]}"},
        }
        return Response(msgspec.json.encode(content), media_type="application/json")

    async def ready(_request: Request) -> Response:
        return Response("ready")

    routes = [Route(f"/api/v1/{name}", run, methods=["POST"]) for name in ("allocate", "release")]
    return Starlette(routes=[*routes, Route("/ready", ready)])


if __name__ == "__main__":
    uvicorn.run(
        application({"inserting": inserting, "shared": shared}[sys.argv[2]]()),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
    )

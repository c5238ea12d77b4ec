"""What a webhook costs at the least: an endpoint of the same framework that reads the body and inserts one row.

No signature is checked, nothing is recognised as repeated, nothing follows.
"""

import os
import sys

import asyncpg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TABLE = "CREATE TABLE IF NOT EXISTS bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body bytea NOT NULL)"


def application(database_url: str) -> Starlette:
    pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def opened() -> "asyncpg.Pool[asyncpg.Record]":
        nonlocal pool
        if pool is None:
            pool = await asyncpg.create_pool(database_url, min_size=10, max_size=10)
        return pool

    async def keep(request: Request) -> Response:
        body = await request.body()
        await (await opened()).execute("INSERT INTO bare (body) VALUES ($1)", body)
        return Response(status_code=204)

    async def ready(request: Request) -> Response:
        await (await opened()).execute("SELECT 1")
        return Response("ready")

    return Starlette(routes=[Route("/bare", keep, methods=["POST"]), Route("/ready", ready)])


if __name__ == "__main__":
    uvicorn.run(
        application(os.environ["DATABASE_URL"]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
    )

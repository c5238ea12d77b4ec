"""An application behind a real HTTP server, on a free port of this machine."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from tests.support.waiting import eventually


@asynccontextmanager
async def serve(app: ASGIApp) -> AsyncIterator[str]:
    """The base URL, for as long as the server runs."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await eventually(lambda: server.started or running.done(), what="the server listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running
        listener.close()

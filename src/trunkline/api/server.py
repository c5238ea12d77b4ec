"""The HTTP servers of a process. Ports are bound before anything else starts, so that a taken one fails at once."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from trunkline.errors import TrunklineError

# Carriers and load balancers reuse connections for up to a minute. A server that closes first loses their requests.
KEEP_ALIVE_S = 75


class PortTaken(TrunklineError):
    """Another process listens on this port."""


def bind(host: str, port: int, variable: str) -> socket.socket:
    """A listening socket, or one clear line about why not."""
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"Port {port} on {host} is taken. Stop what listens there, or set {variable}."
            ) from error
        raise PortTaken(
            f"Cannot listen on {host}:{port}: {error.strerror}. Set {variable} or HTTP_HOST."
        ) from error


class HttpServer:
    """Serves one application on one socket until it is stopped."""

    def __init__(self, app: ASGIApp, listener: socket.socket, *, shutdown_timeout_s: float):
        self._listener = listener
        self._server = _Quiet(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                # With it any process on this machine could forge the client's address. Webhooks have their own rule.
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, int(shutdown_timeout_s)),
            )
        )
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve([self._listener]), name=f"http {self.port}")

    async def stop(self) -> None:
        """Accept no connections, and let open requests finish within the limit."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Quiet(uvicorn.Server):
    """Handles no signals: the process does, and stops its components in order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

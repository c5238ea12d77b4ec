"""Serves the metrics of a process without an HTTP server, such as a worker of an application.

    with serve_metrics(9100):
        asyncio.run(jobs.run())

A server of its own, in a thread, so that it answers while the event loop is busy. An application that serves pages
already puts `metrics.REGISTRY` into them, `prometheus_client.make_asgi_app(registry=metrics.REGISTRY)` for example.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import start_http_server

from trunkline.telemetry import metrics


@contextmanager
def serve_metrics(port: int, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve all metrics of this process under `/metrics` until the end of the block. Yields the port; 0 takes a free
    one."""
    server, thread = start_http_server(port, host, registry=metrics.REGISTRY)
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

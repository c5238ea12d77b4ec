"""Tests use the servers of their fixtures, never those of whoever runs them."""

import os


def pytest_configure() -> None:
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)

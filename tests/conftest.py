"""Tests use the servers of their fixtures, never those of whoever runs them, and none of them minds a busy machine."""

import os

from hypothesis import settings

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


def pytest_configure() -> None:
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)

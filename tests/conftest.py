"""Tests use the servers of their fixtures, never those of whoever runs them.

Property tests try the same examples each time and have no time limit, so that a run says the same on every machine.
To look for new ones: `make test ARGS="--hypothesis-profile=explore -k name"`.
"""

import os

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("same")


def pytest_configure() -> None:
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)

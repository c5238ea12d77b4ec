"""An address at which connecting never ends."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def silent_address() -> Iterator[tuple[str, int]]:
    """A listener whose queue is full: the kernel drops whoever else knocks, as a broken route would."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        stack.enter_context(socket.create_connection(listener.getsockname()))
        yield listener.getsockname()

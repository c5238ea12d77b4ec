"""Free ports on loopback."""

import random
import socket

LOOPBACK = "127.0.0.1"
# Below the ephemeral range of Linux and the BSDs (from 32768 and 49152 on): a process that connects just before a
# server binds its port cannot take it.
SERVER_PORTS = range(20_000, 32_768)
TRIES = 50
# Chosen by this process before: their servers may not have bound them yet.
_chosen: set[int] = set()


def free_port(preferred: int | None = None) -> int:
    """`preferred` if it is free, else any.

    Another server may take it before this one does: then this one fails, and is started on another port.
    """
    if preferred is not None and (port := _bindable(preferred)) is not None:
        return port
    # The system's randomness: with a seeded `random` every process would choose the same ports.
    for candidate in random.SystemRandom().sample(SERVER_PORTS, TRIES):
        if candidate not in _chosen and (port := _bindable(candidate)) is not None:
            _chosen.add(port)
            return port
    port = _bindable(0)
    assert port is not None, "the kernel hands out a free port"
    return port


def _bindable(port: int) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: a port with connections in TIME_WAIT only is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return None
        bound: int = probe.getsockname()[1]
        return bound

"""Free ports on loopback."""

import socket

LOOPBACK = "127.0.0.1"


def free_port(preferred: int | None = None) -> int:
    """`preferred` if nobody has it, else one that the kernel picks.

    Somebody may take it before the server does: then the server says so, and is started on another one.
    """
    if preferred is not None and (port := _bindable(preferred)) is not None:
        return port
    port = _bindable(0)
    assert port is not None, "the kernel hands out a free port"
    return port


def _bindable(port: int) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do: a port whose old connections only linger is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return None
        bound: int = probe.getsockname()[1]
        return bound

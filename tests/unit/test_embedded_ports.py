import socket

from trunkline.embedded.ports import LOOPBACK, free_port


def test_the_preferred_port_is_kept_while_it_is_free() -> None:
    port = free_port()
    assert free_port(port) == port


def test_a_taken_port_is_not_handed_out() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port(port) != port

import os

import pytest

from trunkline.client.background_loop import BackgroundLoop


async def one() -> int:
    return 1


async def nothing() -> None:
    return None


def test_a_closed_loop_refuses_work_and_can_be_closed_again() -> None:
    loop = BackgroundLoop("client")
    assert loop.run(one()) == 1
    loop.close(nothing)
    loop.close(nothing)
    with pytest.raises(RuntimeError, match="This client is closed"):
        loop.run(one())


def test_a_forked_process_gets_an_error_instead_of_waiting_for_ever() -> None:
    loop = BackgroundLoop("client")
    child = os.fork()
    if child == 0:
        try:
            loop.run(one())
        except RuntimeError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    loop.close(nothing)

"""An outage is logged when it begins and when it is over, however many requests fail meanwhile."""

from structlog.testing import capture_logs

from trunkline.telemetry.outages import QUIET_S, Outage


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_an_outage_is_logged_once_and_its_end_with_its_length() -> None:
    clock = Clock()
    outage = Outage("router.unavailable", clock, what="heartbeat")
    with capture_logs() as logs:
        for _ in range(208):
            outage.failed(OSError("away"))
            clock.now_s += 8 / 208
        outage.worked(begun_at=clock.now_s + QUIET_S)
    assert [(line["event"], line["what"]) for line in logs] == [
        ("router.unavailable", "heartbeat"),
        ("router.unavailable_over", "heartbeat"),
    ]
    assert (logs[0]["error"], logs[1]["down_s"], logs[1]["failures"]) == ("away", 8.0, 208)


def test_work_begun_before_the_last_failure_ends_no_outage() -> None:
    clock = Clock()
    outage = Outage("router.unavailable", clock)
    with capture_logs() as logs:
        for _ in range(5):
            begun_at = outage.now()
            outage.failed(OSError("away"))
            outage.worked(begun_at)
            clock.now_s += 0.1
    assert len(logs) == 1


def test_the_next_outage_is_logged_again() -> None:
    clock = Clock()
    outage = Outage("x", clock)
    with capture_logs() as logs:
        for _ in range(2):
            outage.failed(OSError("away"))
            clock.now_s += 10
            outage.worked(outage.now())
    assert [line["event"] for line in logs] == ["x", "x_over"] * 2


def test_success_without_an_outage_is_not_logged() -> None:
    with capture_logs() as logs:
        Outage("x").worked(0.0)
    assert logs == []

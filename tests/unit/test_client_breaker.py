"""The circuit breaker, by a clock that the test moves."""

from trunkline.client.breaker import BreakerRule, CircuitBreaker, shared_breaker


class Time:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def opened(time: Time) -> CircuitBreaker:
    breaker = CircuitBreaker(BreakerRule(), time)
    for _ in range(5):
        breaker.failed()
    return breaker


def test_five_consecutive_failures_open_the_breaker_and_a_success_resets_the_count() -> None:
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.failed()
    breaker.succeeded()
    for _ in range(4):
        breaker.failed()
    assert (breaker.state, breaker.allows()) == ("closed", True)
    breaker.failed()
    assert (breaker.state, breaker.allows()) == ("open", False)


def test_an_open_breaker_admits_three_probes_after_30_s_and_closes_after_their_success() -> None:
    time = Time()
    breaker = opened(time)
    time.now_s = 29.9
    assert not breaker.allows()
    time.now_s = 30
    assert breaker.state == "half_open"
    assert [breaker.allows() for _ in range(4)] == [True, True, True, False]
    for _ in range(2):
        breaker.succeeded()
    assert not breaker.allows()
    breaker.succeeded()
    assert [breaker.allows() for _ in range(4)] == [True] * 4


def test_a_failed_probe_opens_the_breaker_for_another_30_s() -> None:
    time = Time()
    breaker = opened(time)
    time.now_s = 30
    assert breaker.allows()
    breaker.failed()
    assert breaker.state == "open"
    time.now_s = 59
    assert not breaker.allows()
    time.now_s = 60
    assert [breaker.allows() for _ in range(4)] == [True, True, True, False]


def test_a_cancelled_probe_leaves_its_place_to_another() -> None:
    time = Time()
    breaker = opened(time)
    time.now_s = 30
    assert [breaker.allows() for _ in range(3)] == [True, True, True]
    breaker.given_up()
    assert [breaker.allows() for _ in range(2)] == [True, False]


def test_probes_without_a_result_are_replaced_after_another_30_s() -> None:
    time = Time()
    breaker = opened(time)
    time.now_s = 30
    assert [breaker.allows() for _ in range(4)] == [True, True, True, False]
    time.now_s = 59
    assert not breaker.allows()
    time.now_s = 60
    assert [breaker.allows() for _ in range(4)] == [True, True, True, False]
    for _ in range(3):
        breaker.succeeded()
    assert breaker.state == "closed"


def test_all_clients_of_one_router_share_a_breaker() -> None:
    one, again = (shared_breaker("http://one", BreakerRule()) for _ in range(2))
    assert one is again
    assert shared_breaker("http://two", BreakerRule()) is not one

"""The circuit breaker, by a clock that moves when told to."""

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


def test_five_failures_in_a_row_open_it_and_a_success_in_between_does_not_let_them_add_up() -> None:
    breaker = CircuitBreaker()
    for _ in range(4):
        breaker.failed()
    breaker.succeeded()
    for _ in range(4):
        breaker.failed()
    assert (breaker.state, breaker.allows()) == ("closed", True)
    breaker.failed()
    assert (breaker.state, breaker.allows()) == ("open", False)


def test_after_thirty_seconds_three_may_try_and_three_successes_close_it() -> None:
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


def test_one_failure_while_half_open_opens_it_for_another_thirty_seconds() -> None:
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


def test_a_try_whose_caller_went_away_leaves_its_place_to_another() -> None:
    time = Time()
    breaker = opened(time)
    time.now_s = 30
    assert [breaker.allows() for _ in range(3)] == [True, True, True]
    breaker.given_up()
    assert [breaker.allows() for _ in range(2)] == [True, False]


def test_tries_that_nobody_told_the_end_of_do_not_keep_it_shut_for_good() -> None:
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

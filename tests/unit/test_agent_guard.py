import pytest

from trunkline.agent import guard, token
from trunkline.agent.guard import BUSY, FORBIDDEN, Finished, Guard, StreamAdmitted, StreamRefused
from trunkline.agent.token import Proven

SECRET = b"the secret of this pod"


def token_of(call_sid: str, allocation_id: str = "", secret: bytes = SECRET, turn: int = 0) -> str:
    return token.sign(secret, call_sid, allocation_id or f"allocation-of-{call_sid}", turn)


@pytest.fixture
def one() -> Guard:
    one = Guard(max_concurrent=1)
    one.trust([SECRET])
    return one


def test_a_stream_with_its_token_is_admitted(one: Guard) -> None:
    assert one.admit("call-1", token_of("call-1")) == StreamAdmitted("allocation-of-call-1")
    assert one.live == ["call-1"]


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "no dot",
        "allocation-of-call-1.",
        token_of("call-2"),
        token_of("call-1", secret=b"the secret of another pod"),
        "another-allocation." + token_of("call-1").rpartition(".")[2],
        token_of("call-1") + "0",
        "ü." + token_of("call-1"),
    ],
)
def test_a_stream_without_a_token_for_this_pod_call_and_allocation_is_refused(
    one: Guard, forged: str
) -> None:
    assert one.admit("call-1", forged) == StreamRefused("no valid token for this pod", FORBIDDEN)
    assert one.live == []


def test_without_a_secret_of_the_router_no_stream_is_admitted() -> None:
    verdict = Guard(max_concurrent=1).admit("call-1", token.sign(b"", "call-1", "a"))
    assert isinstance(verdict, StreamRefused)


def test_a_pod_at_max_concurrent_refuses_the_next_stream(one: Guard) -> None:
    one.admit("call-1", token_of("call-1"))

    assert one.admit("call-2", token_of("call-2")) == StreamRefused("the pod has its maximum of calls", BUSY)

    one.release("call-1")
    assert one.admit("call-2", token_of("call-2")) == StreamAdmitted("allocation-of-call-2")


def test_a_shared_pod_admits_streams_up_to_max_concurrent() -> None:
    shared = Guard(max_concurrent=3)
    shared.trust([SECRET])
    verdicts = [shared.admit(f"call-{n}", token_of(f"call-{n}")) for n in range(4)]
    assert [isinstance(verdict, StreamAdmitted) for verdict in verdicts] == [True, True, True, False]


def test_an_allocation_is_used_once(one: Guard) -> None:
    one.admit("call-1", token_of("call-1"))
    one.release("call-1")

    again = one.admit("call-1", token_of("call-1"))

    assert again == StreamRefused("this allocation has been used", FORBIDDEN)
    assert one.admit("call-1", token_of("call-1", "a new one")) == StreamAdmitted("a new one")


def test_a_later_turn_of_an_allocation_is_taken_once(one: Guard) -> None:
    one.admit("call-1", token_of("call-1"))
    one.release("call-1")

    assert one.admit("call-1", token_of("call-1", turn=1)) == StreamAdmitted("allocation-of-call-1", turn=1)
    one.release("call-1", turn=1)
    for turn in (0, 1):
        verdict = one.admit("call-1", token_of("call-1", turn=turn))
        assert verdict == StreamRefused("this allocation has been used", FORBIDDEN)
    assert one.admit("call-1", token_of("call-1", turn=2)) == StreamAdmitted("allocation-of-call-1", turn=2)


def test_a_later_turn_replaces_the_stream_that_is_still_open(one: Guard) -> None:
    one.admit("call-1", token_of("call-1"))

    assert one.admit("call-1", token_of("call-1", turn=1)) == StreamAdmitted("allocation-of-call-1", turn=1)

    one.release("call-1", turn=0)
    assert one.live == ["call-1"], "the earlier turn lets go of nothing"
    assert isinstance(one.admit("call-2", token_of("call-2")), StreamRefused)
    one.release("call-1", turn=1)
    assert one.live == []


def test_a_call_that_the_agent_has_finished_is_not_resumed(one: Guard) -> None:
    one.admit("call-1", token_of("call-1"))
    one.finish("allocation-of-call-1")
    one.release("call-1")

    assert one.admit("call-1", token_of("call-1", turn=1)) == Finished(turn=1)
    assert one.live == []


def test_an_ended_call_is_listed_for_a_while(one: Guard) -> None:
    one.admit("call-1", token_of("call-1"))
    assert one.ended(60) == []
    one.release("call-1")
    assert one.ended(60) == ["call-1"]
    one.admit("call-1", token_of("call-1", turn=1))
    assert one.ended(60) == [], "it came back"
    one.release("call-1", 1)
    assert one.ended(0) == []


def test_a_hanging_handler_uses_up_a_slot_of_the_pod(one: Guard) -> None:
    one.admit("call-1", token_of("call-1"))
    one.hang("call-1")

    assert (one.live, one.hanging, one.is_stuck) == ([], ["call-1"], True)
    assert one.admit("call-2", token_of("call-2")) == StreamRefused("the pod has its maximum of calls", BUSY)
    one.unhang("call-1")
    assert isinstance(one.admit("call-2", token_of("call-2")), StreamAdmitted)
    assert not one.is_stuck


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_token_says_which_turn_it_is_for(turn: int) -> None:
    signed = token_of("call-1", "an-allocation", turn=turn)
    assert token.verify([SECRET], "call-1", signed) == Proven("an-allocation", turn)


def test_the_turn_of_a_token_cannot_be_changed() -> None:
    name, _, proof = token_of("call-1", "an-allocation", turn=1).rpartition(".")
    assert name == "an-allocation.1"
    for forged in (f"an-allocation.2.{proof}", f"an-allocation.{proof}"):
        assert token.verify([SECRET], "call-1", forged) is None


def test_one_call_has_one_stream_even_at_a_shared_pod() -> None:
    shared = Guard(max_concurrent=3)
    shared.trust([SECRET])
    shared.admit("call-1", token_of("call-1"))
    assert isinstance(shared.admit("call-1", token_of("call-1", "a new one")), StreamRefused)


def test_tokens_of_both_secrets_are_admitted_while_the_key_is_rotated(one: Guard) -> None:
    one.trust([b"new", SECRET])
    assert isinstance(one.admit("call-1", token_of("call-1", secret=SECRET)), StreamAdmitted)
    one.release("call-1")
    assert isinstance(one.admit("call-2", token_of("call-2", secret=b"new")), StreamAdmitted)


def test_a_leaving_pod_admits_only_the_call_allocated_before(one: Guard) -> None:
    one.leave(["call-1"])

    assert one.admit("call-2", token_of("call-2")) == StreamRefused("the pod is leaving", BUSY)
    assert one.expected == {"call-1"}
    assert isinstance(one.admit("call-1", token_of("call-1")), StreamAdmitted)
    assert one.expected == frozenset()


def test_a_leaving_pod_does_not_wait_for_a_call_that_has_ended(one: Guard) -> None:
    one.admit("call-1", token_of("call-1"))
    one.release("call-1")
    one.leave(["call-1"])
    assert one.expected == frozenset()


def test_used_allocations_are_remembered_up_to_a_bound(one: Guard) -> None:
    for number in range(guard.USED_MAX + 1):
        one.admit(f"call-{number}", token_of(f"call-{number}"))
        one.release(f"call-{number}")
    assert isinstance(one.admit("call-0", token_of("call-0")), StreamAdmitted)
    assert isinstance(one.admit("call-2", token_of("call-2")), StreamRefused)


def test_a_maximum_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Guard(max_concurrent=0)

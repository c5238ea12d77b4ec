from itertools import permutations

from trunkline.dispatch.intent import _lock_keys

KINDS = ("person", "merchant", "overdial", "account")
NAMES = [(kind, subject) for kind in KINDS for subject in ("a", "b", "c")]


def _lock_key(kind: str, subject: str) -> int:
    (key,) = _lock_keys([(kind, subject)])
    return key


def test_race_6_locks_on_the_same_names_are_taken_in_one_order() -> None:
    """Kind by kind, what most intents want last; within a kind by number. Else two batches wait for each other."""
    expected = [key for kind in KINDS for key in sorted(_lock_key(kind, subject) for subject in "abc")]
    assert _lock_keys(NAMES) == expected
    assert _lock_keys(reversed(NAMES)) == expected
    for some in permutations(NAMES[:4]):
        assert _lock_keys(some) == [key for key in expected if key in {_lock_key(*name) for name in some}]


def test_a_name_requested_twice_is_locked_once() -> None:
    assert _lock_keys([("person", "a")] * 3) == [_lock_key("person", "a")]

"""The token of a call opens that call and nothing else."""

from uuid import UUID, uuid4

import pytest

from trunkline.router.tokens import CallKeys, CallProof

KEYS = CallKeys.from_secrets(["one secret"])
ATTEMPT = UUID("0197f0a0-0000-7000-8000-000000000001")
PROOF = CallProof(ATTEMPT, turn=0)


def token(keys: CallKeys = KEYS, attempt: UUID = ATTEMPT, call_id: str = "CA1") -> str:
    return f"{attempt}.{keys.sign(attempt, call_id)}"


def test_a_call_token_verifies_with_its_attempt() -> None:
    assert KEYS.verify(token(), "CA1") == PROOF


@pytest.mark.parametrize(
    "forged",
    [
        token(call_id="CA2"),
        f"{uuid4()}.{KEYS.sign(ATTEMPT, 'CA1')}",
        token(CallKeys.from_secrets(["another secret"])),
        token()[:-1],
        token().upper(),
        str(ATTEMPT),
        f"{ATTEMPT}.",
        ".",
        "",
        f"{ATTEMPT}.\u00e9",
    ],
)
def test_a_token_of_another_call_or_key_does_not_verify(forged: str) -> None:
    assert KEYS.verify(forged, "CA1") is None


def test_both_keys_verify_while_one_is_replaced() -> None:
    rotating = CallKeys.from_secrets(["the new one", "one secret"])
    assert rotating.verify(token(), "CA1") == PROOF
    assert rotating.verify(token(rotating), "CA1") == PROOF
    assert KEYS.verify(token(rotating), "CA1") is None


def test_the_parameters_of_a_stream_fit_into_what_exotel_takes() -> None:
    """256 characters, with the router's token of 97 characters."""
    query = f"attempt={ATTEMPT}&token={'t' * 97}&key={KEYS.sign(ATTEMPT, 'a' * 34)}"
    assert len(query) <= 256


def test_call_keys_need_a_secret() -> None:
    with pytest.raises(ValueError, match="none of them empty"):
        CallKeys.from_secrets([""])

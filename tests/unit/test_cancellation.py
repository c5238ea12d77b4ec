import pytest

from trunkline.leads.cancellation import Cancellation, after_cancellation
from trunkline.model import Decision, Finish, Outcome, Retry

ABORTED = Finish(Outcome.ABORTED, "sold out")
ANSWERED = Finish(Outcome.ANSWERED, None)
NO_ANSWER = Finish(Outcome.NO_ANSWER, "NO_ANSWER")
LAST_CALL = Cancellation("sold out", hang_up=False)
CUT_SHORT = Cancellation("sold out", hang_up=True)


@pytest.mark.parametrize(
    ("decision", "cancelled", "was_answered", "becomes"),
    [
        (Retry(60), None, False, Retry(60)),
        (NO_ANSWER, None, False, NO_ANSWER),
        (Retry(60), LAST_CALL, False, ABORTED),
        (Retry(60), LAST_CALL, True, ABORTED),
        (Retry(60, carrier_error=True, counted=False), LAST_CALL, False, ABORTED),
        (NO_ANSWER, LAST_CALL, False, NO_ANSWER),
        (ANSWERED, LAST_CALL, True, ANSWERED),
        (Retry(60), CUT_SHORT, False, ABORTED),
        (NO_ANSWER, CUT_SHORT, False, ABORTED),
        (ANSWERED, CUT_SHORT, True, ANSWERED),
        (Finish(Outcome.CARRIER_ERROR, "21610"), CUT_SHORT, False, ABORTED),
    ],
)
def test_a_cancelled_lead_is_not_called_again_and_a_conversation_stays_one(
    decision: Decision, cancelled: Cancellation | None, was_answered: bool, becomes: Decision
) -> None:
    assert after_cancellation(decision, cancelled, was_answered=was_answered) == becomes

import pytest

from trunkline.leads.cancellation import after_cancellation
from trunkline.model import Finish, LeadDecision, Outcome, Retry

ABORTED = Finish(Outcome.ABORTED, "sold out")
ANSWERED = Finish(Outcome.ANSWERED, None)
NO_ANSWER = Finish(Outcome.NO_ANSWER, "NO_ANSWER")
LAST_CALL, CUT_SHORT = False, True


@pytest.mark.parametrize(
    ("decision", "hang_up", "becomes"),
    [
        (Retry(60), LAST_CALL, ABORTED),
        (Retry(60, carrier_error=True, counted=False), LAST_CALL, ABORTED),
        (NO_ANSWER, LAST_CALL, NO_ANSWER),
        (ANSWERED, LAST_CALL, ANSWERED),
        (Retry(60), CUT_SHORT, ABORTED),
        (NO_ANSWER, CUT_SHORT, ABORTED),
        (ANSWERED, CUT_SHORT, ABORTED),
        (Finish(Outcome.ANSWERED, None, "ECHOED"), CUT_SHORT, ABORTED),
        (Finish(Outcome.CARRIER_ERROR, "21610"), CUT_SHORT, ABORTED),
    ],
)
def test_a_cancelled_lead_is_not_called_again_and_is_aborted_where_its_call_was_cut_short(
    decision: LeadDecision, hang_up: bool, becomes: LeadDecision
) -> None:
    assert after_cancellation(decision, "sold out", hang_up=hang_up) == becomes

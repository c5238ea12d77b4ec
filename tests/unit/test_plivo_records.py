"""Why a call ended, as Plivo's own record of it says."""

import pytest

from trunkline.telephony.plivo import ended_view


@pytest.mark.parametrize(
    ("code", "fault"), [(1010, "1010"), ("3030", "3030"), (3010, ""), (4000, ""), (None, "")]
)
def test_plivos_record_keeps_the_end_code_of_our_fault(code: object, fault: str) -> None:
    """Out of credit and a number that is not ours; a busy line and a hang-up say nothing of us."""
    view = ended_view({"call_uuid": "c", "hangup_cause_code": code, "hangup_cause_name": "Error"})
    assert view is not None
    assert (view.state, view.fault) == ("ended", fault)


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("Busy Line", "busy"),
        ("No Answer", "no_answer"),
        ("Ring Timeout Reached", "no_answer"),
        ("Cancelled", "canceled"),
        ("Error", "failed"),
    ],
)
def test_plivos_record_of_an_unanswered_call_has_its_reason_by_the_cause(cause: str, reason: str) -> None:
    view = ended_view({"call_uuid": "c", "hangup_cause_name": cause})
    assert view is not None
    assert view.reason == reason

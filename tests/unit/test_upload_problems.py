"""Refused rows of an upload, by reason."""

from trunkline.leads.upload_report import UploadProblem, by_reason

_NO_PHONE = {"field": "phone", "error": "Give the phone to call."}


def test_refused_rows_with_the_same_reason_are_one_problem() -> None:
    rows = [
        {"row": n, "result": "refused", "code": "invalid_request", "fields": [_NO_PHONE]}
        for n in range(1, 33)
    ]
    other = {
        "row": 33,
        "result": "conflict",
        "code": "request_id_reused",
        "error": "Sent before.",
        "request_id": "a",
    }
    assert by_reason([*rows, other]) == [
        UploadProblem(
            "refused",
            "invalid_request",
            "phone: Give the phone to call.",
            32,
            "1, 2, 3, 4, 5 and 27 more",
            "",
        ),
        UploadProblem("conflict", "request_id_reused", "Sent before.", 1, "33", "a"),
    ]


def test_refused_rows_with_different_fields_are_separate_problems() -> None:
    rows = [
        {"row": 1, "result": "refused", "code": "invalid_request", "fields": [_NO_PHONE]},
        {
            "row": 2,
            "result": "refused",
            "code": "invalid_request",
            "fields": [_NO_PHONE, {"field": "priority", "error": "100 is too much."}],
        },
    ]
    assert [each.why for each in by_reason(rows)] == [
        "phone: Give the phone to call.",
        "phone: Give the phone to call.; priority: 100 is too much.",
    ]

"""Dates that others write are read, or are none."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from pydantic import TypeAdapter, ValidationError

from trunkline.leads.ingest import Moment
from trunkline.moments import read_moment
from trunkline.telephony.exotel_webhooks import Locale
from trunkline.telephony.vapi_webhooks import moment as vapi_moment
from trunkline.telephony.vapi_webhooks import read_report

OUTSIDE = ["0001-01-01T00:00:00+05:30", "9999-12-31T23:59:59-05:00", "0001-01-01", "2200-01-01T00:00:00Z"]


@pytest.mark.parametrize("text", [*OUTSIDE, "", "yesterday", None, 7])
def test_a_text_that_is_no_moment_of_a_call_is_none(text: object) -> None:
    assert read_moment(text, UTC) is None
    assert Locale().moment(text) is None
    assert vapi_moment(text) is None


def test_a_moment_is_returned_in_utc() -> None:
    assert read_moment("2030-05-01T09:30:00+02:00") == datetime(2030, 5, 1, 7, 30, tzinfo=UTC)
    assert read_moment("2030-05-01T09:30:00") is None
    india = read_moment("2030-05-01 09:30:00", ZoneInfo("Asia/Kolkata"))
    assert india == datetime(2030, 5, 1, 4, 0, tzinfo=UTC)


@pytest.mark.parametrize("text", OUTSIDE)
def test_an_impossible_callback_date_of_an_assistant_is_dropped(text: str) -> None:
    told = {"analysis": {"structuredData": {"callback_at": text, "disposition": "later"}}}
    report = read_report(told, "c", "https://api.vapi.ai")
    assert report is not None
    assert (report.disposition, report.callback_at) == ("later", None)


@pytest.mark.parametrize("text", OUTSIDE[:2])
def test_the_api_refuses_a_date_beyond_the_calendar(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Moment).validate_json(f'"{text}"')
    assert TypeAdapter(Moment).validate_json('"9999-12-31T23:59:59Z"').year == 9999

"""When a campaign will be done, and what its rows become."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from trunkline.campaigns.progress import ends_at, pace
from trunkline.campaigns.rows import CampaignRows, Columns, parse_mapping, same_person
from trunkline.leads.uploads import BrokenUpload, UploadRow
from trunkline.leads.windows import TimeSpan, Window, WindowRule
from trunkline.store.campaigns import StoredCampaign

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
OFFICE = (WindowRule(Window(spans=(TimeSpan(start="09:00", end="18:00"),)), ("UTC",)),)


def test_the_estimated_end_is_the_remaining_leads_at_the_recent_pace() -> None:
    assert ends_at(100, 1.0, NOON, ()) == NOON + timedelta(seconds=100)
    assert ends_at(0, 0.0, NOON, ()) == NOON
    assert ends_at(100, 0.0, NOON, ()) is None


def test_the_estimated_end_skips_closed_hours() -> None:
    assert ends_at(3600 * 5, 1.0, NOON, OFFICE) == NOON + timedelta(hours=5)
    assert ends_at(3600 * 8, 1.0, NOON, OFFICE) == datetime(2026, 6, 2, 11, tzinfo=UTC)
    assert ends_at(3600 * 20, 1.0, NOON, OFFICE) == datetime(2026, 6, 3, 14, tzinfo=UTC)


def test_there_is_no_estimate_without_an_open_window_or_beyond_the_horizon() -> None:
    never = (*OFFICE, WindowRule(Window(spans=(TimeSpan(start="20:00", end="21:00"),)), ("UTC",)))
    assert ends_at(1, 1.0, NOON, never) is None
    assert ends_at(10**9, 1.0, NOON, OFFICE) is None


def test_a_pace_is_measured_over_the_running_time_up_to_ten_minutes() -> None:
    assert pace(60, NOON - timedelta(hours=5), NOON) == pytest.approx(0.1)
    assert pace(60, NOON - timedelta(seconds=120), NOON) == pytest.approx(0.5)
    assert pace(1, NOON - timedelta(seconds=2), NOON) == pytest.approx(0.5), "by what has passed"
    assert pace(6, NOON, NOON) == pytest.approx(6), "at least a second"
    assert pace(0, None, NOON) == 0


def campaign() -> StoredCampaign:
    return StoredCampaign(
        uuid4(), "m", "May", "DRAFT", "p", 60, 4, None, None, None, None, None, NOON, NOON, None, None, "r", None,
        b"", "p", 60, 4, False, None, NOON,
    )  # fmt: skip


def rows(*values: bytes, columns: Columns | None = None) -> list[UploadRow]:
    reader = CampaignRows("application/x-ndjson", campaign(), "US", columns or Columns())
    return list(reader.read(b"\n".join(values), is_end=True))


def test_rows_with_one_phone_in_different_spellings_have_one_request_id() -> None:
    one, two, three = rows(
        b'{"phone": "415 555 0123"}', b'{"phone": "+14155550123"}', b'{"phone": "+14155550124"}'
    )
    ids = [row.value["request_id"].rpartition("/")[2] for row in (one, two, three)]
    assert ids == ["+14155550123", "+14155550123", "+14155550124"]
    assert same_person("a") == same_person("a") != same_person("b")


def test_a_row_cannot_set_merchant_campaign_pool_or_request_id() -> None:
    [row] = rows(
        b'{"phone": "+14155550123", "merchant_id": "x", "campaign_id": "y", "pool": "z", "request_id": "q"}'
    )
    assert (row.value["merchant_id"], row.value["pool"]) == ("m", "p")
    assert row.value["payload"] == {"merchant_id": "x", "campaign_id": "y", "pool": "z", "request_id": "q"}


def test_rows_without_an_object_or_phone_are_passed_on_to_be_refused() -> None:
    number, none = rows(b"12", b"{}")
    assert number.value == 12
    assert none.value["request_id"].endswith("/row-2")


def test_a_mapping_renames_columns_and_a_wrong_one_is_refused() -> None:
    columns = parse_mapping(["phone:Mobile", "payload.name:Full name"], "ignore")
    assert isinstance(columns, Columns)
    assert [columns.name(each) for each in ("Mobile", "Full name", "Other", "priority", "payload.x")] == [
        "phone", "payload.name", None, "priority", "payload.x",
    ]  # fmt: skip
    for wrong in (["phone"], ["phone:a", "phone:b"], ["phone:a", "timezone:a"], ["payload:"], ["x:y"]):
        assert isinstance(parse_mapping(wrong, "payload"), str)
    with pytest.raises(BrokenUpload, match="Other"):
        Columns({}, "refuse").name("Other")

"""When a campaign will be done, and what its rows become."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from trunkline.campaigns.estimate import ends_at, pace
from trunkline.campaigns.rows import CampaignRows, Columns, parse_mapping, same_person
from trunkline.leads.uploads import BrokenUpload, JsonLines, UploadRow
from trunkline.leads.windows import TimeSpan, Window, WindowRule
from trunkline.store.campaigns import Campaign

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
OFFICE = (WindowRule(Window(spans=(TimeSpan(start="09:00", end="18:00"),)), ("UTC",)),)


def test_what_is_left_at_the_pace_of_late() -> None:
    assert ends_at(100, 1.0, NOON, ()) == NOON + timedelta(seconds=100)
    assert ends_at(0, 0.0, NOON, ()) == NOON
    assert ends_at(100, 0.0, NOON, ()) is None


def test_closed_hours_are_added() -> None:
    assert ends_at(3600 * 5, 1.0, NOON, OFFICE) == NOON + timedelta(hours=5)
    assert ends_at(3600 * 8, 1.0, NOON, OFFICE) == datetime(2026, 6, 2, 11, tzinfo=UTC)
    assert ends_at(3600 * 20, 1.0, NOON, OFFICE) == datetime(2026, 6, 3, 14, tzinfo=UTC)


def test_nobody_can_tell_when_a_window_never_opens_or_it_takes_for_ever() -> None:
    never = (*OFFICE, WindowRule(Window(spans=(TimeSpan(start="20:00", end="21:00"),)), ("UTC",)))
    assert ends_at(1, 1.0, NOON, never) is None
    assert ends_at(10**9, 1.0, NOON, OFFICE) is None


def test_a_pace_is_judged_by_the_time_it_is_known_for() -> None:
    assert pace(60, NOON - timedelta(hours=5), NOON).per_s == pytest.approx(0.1)
    assert pace(60, NOON - timedelta(seconds=120), NOON).per_s == pytest.approx(0.5)
    assert pace(1, NOON - timedelta(seconds=2), NOON).per_s == pytest.approx(0.5), "by what has passed"
    assert pace(6, NOON, NOON).per_s == pytest.approx(6), "at least a second"
    assert pace(0, None, NOON).per_s == 0


def campaign() -> Campaign:
    return Campaign(
        uuid4(), "r", "m", None, b"", "May", "DRAFT", "p", 60, 4, "p", 60, 4, None, None, None, None, False, None, None,
        None, None, NOON, NOON, NOON,
    )  # fmt: skip


def rows(*values: bytes, columns: Columns | None = None) -> list[UploadRow]:
    reader = CampaignRows(JsonLines(), campaign(), "US", columns or Columns())
    return [*reader.feed(b"\n".join(values)), *reader.end()]


def test_one_person_has_one_request_however_the_phone_is_written() -> None:
    one, two, three = rows(
        b'{"phone": "415 555 0123"}', b'{"phone": "+14155550123"}', b'{"phone": "+14155550124"}'
    )
    ids = [row.value["request_id"].rpartition("/")[2] for row in (one, two, three)]
    assert ids == ["+14155550123", "+14155550123", "+14155550124"]
    assert same_person("a") == same_person("a") != same_person("b")


def test_a_row_cannot_say_whose_it_is_nor_break_out_of_its_campaign() -> None:
    [row] = rows(
        b'{"phone": "+14155550123", "merchant_id": "x", "campaign_id": "y", "pool": "z", "request_id": "q"}'
    )
    assert (row.value["merchant_id"], row.value["pool"]) == ("m", "p")
    assert row.value["payload"] == {"merchant_id": "x", "campaign_id": "y", "pool": "z", "request_id": "q"}


def test_what_is_no_object_and_what_has_no_phone_is_left_to_be_refused() -> None:
    number, none = rows(b"12", b"{}")
    assert number.value == 12
    assert none.value["request_id"].endswith("/row-2")


def test_mappings() -> None:
    columns = parse_mapping(["phone:Mobile", "payload.name:Full name"], "ignore")
    assert isinstance(columns, Columns)
    assert [columns.name(each) for each in ("Mobile", "Full name", "Other", "priority", "payload.x")] == [
        "phone", "payload.name", None, "priority", "payload.x",
    ]  # fmt: skip
    for wrong in (["phone"], ["phone:a", "phone:b"], ["phone:a", "timezone:a"], ["payload:"], ["x:y"]):
        assert isinstance(parse_mapping(wrong, "payload"), str)
    with pytest.raises(BrokenUpload, match="Other"):
        Columns({}, "refuse").name("Other")

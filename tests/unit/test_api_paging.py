from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from trunkline.api.errors import ApiError
from trunkline.api.paging import Cursors, PageQuery
from trunkline.api.principal import Principal
from trunkline.store.tables import FIRST_ID
from trunkline.store.tenants import Tenant


class ThingQuery(PageQuery):
    color: str | None = None


def who(reseller_id: str | None = None) -> Principal:
    return Principal(FIRST_ID, "k", frozenset({"read"}), Tenant(reseller_id), None)


def cursors(name: str = "things", owner: str | None = None, **query: Any) -> Cursors:
    return Cursors(name, who(owner), ThingQuery(limit=2, **query))


def first_cursor(name: str = "things", owner: str | None = None, **query: Any) -> str:
    page = cursors(name, owner, **query).page(["a", "b", "c"], lambda thing: thing)
    assert list(page.items) == ["a", "b"]
    assert page.next_cursor is not None
    return page.next_cursor


def test_a_cursor_leads_to_the_last_object_of_its_page() -> None:
    assert cursors(cursor=first_cursor()).start_key("") == "b"
    assert cursors().start_key("") == ""


def test_the_last_page_has_no_cursor() -> None:
    assert cursors().page(["a", "b"], lambda thing: thing).next_cursor is None
    assert cursors().page([], lambda thing: thing).next_cursor is None


@pytest.mark.parametrize(
    "foreign",
    [
        first_cursor(color="red"),
        first_cursor(name="others"),
        first_cursor(owner="r"),
        first_cursor()[:-4],
        first_cursor()[1:],
        "",
        "not base64!",
        "AAAA",
        "ünïcode",
    ],
)
def test_a_cursor_of_another_list_filter_or_tenant_is_refused(foreign: str) -> None:
    with pytest.raises(ApiError) as refused:
        cursors(cursor=foreign).start_key("")
    assert (refused.value.status_code, refused.value.code) == (400, "bad_cursor")


def test_a_cursor_with_a_text_does_not_pass_for_an_id() -> None:
    with pytest.raises(ApiError):
        cursors(cursor=first_cursor()).start_id(FIRST_ID)
    last = UUID(int=7)
    page = cursors().page([UUID(int=1), last, UUID(int=9)], lambda thing: thing)
    assert cursors(cursor=page.next_cursor).start_id(FIRST_ID) == last


def test_the_limit_may_change_from_page_to_page() -> None:
    query = ThingQuery(limit=100, cursor=first_cursor())
    assert Cursors("things", who(), query).start_key("") == "b"


def test_a_misspelt_filter_is_refused() -> None:
    with pytest.raises(ValidationError):
        ThingQuery.model_validate({"colour": "red"})

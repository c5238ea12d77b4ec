"""The page of the audit log."""

from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta

from trunkline.console.api_client import ApiRefused
from trunkline.console.page_request import PageRequest, Shown

PAGE = 100
KEYS_MAX = 200
# The page of a line's subject, by the first word of its action.
PAGES = {"lead": "/leads/", "campaign": "/campaigns/", "reminder": "/reminders/", "number": "/numbers/"}


async def show(visit: PageRequest) -> Shown:
    filters = {name: visit.given(name) for name in ("actor", "action", "subject", "day")}
    since, until = _day(filters["day"])
    query = filters | {
        "day": None,
        "since": since,
        "until": until,
        "cursor": visit.given("cursor"),
        "limit": PAGE,
    }
    found = await visit.get("/audit", query)
    today = datetime.now(UTC).date()
    return Shown(
        "audit.html",
        {
            "lines": found["items"],
            "next_cursor": found["next_cursor"],
            "filters": filters,
            "days": {"Today": today.isoformat(), "Yesterday": (today - timedelta(days=1)).isoformat()},
            "names": await key_names(visit),
            "pages": PAGES,
        },
    )


def _day(text: str | None) -> tuple[str | None, str | None]:
    """A whole day, in UTC like every time of the console."""
    if text is None:
        return None, None
    try:
        day = datetime.combine(datetime.fromisoformat(text).date(), time(), UTC)
    except ValueError:
        raise ApiRefused(422, "invalid_request", "This is no day: write 2030-05-01.") from None
    return day.isoformat(), (day + timedelta(days=1)).isoformat()


async def key_names(visit: PageRequest) -> Mapping[str, str]:
    """Names of keys for people: the audit log has their ids. Of the keys that this one may see; none without the scope
    `admin`."""
    if not visit.may():
        return {}
    try:
        keys = await visit.api.get("/keys", {"limit": KEYS_MAX})
    except ApiRefused:
        return {}
    return {f"key:{key['id']}": key["name"] for key in keys["items"]}

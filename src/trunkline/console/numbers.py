"""Numbers and their channels: which call holds each, and since when."""

from trunkline.console.api_client import segment
from trunkline.console.page_request import ActionDone, PageRequest, Shown, back

PAGE = 50
# More channels than these are drawn as one bar.
SQUARES_MAX = 120


async def show(visit: PageRequest) -> Shown:
    query = {"limit": PAGE, "pool": visit.given("pool"), "cursor": visit.given("cursor")}
    found = await visit.api.get("/numbers", query)
    return Shown(
        "numbers.html",
        {
            "numbers": found["items"],
            "next_cursor": found["next_cursor"],
            "pool": visit.given("pool"),
            "squares_max": SQUARES_MAX,
        },
    )


async def show_one(visit: PageRequest) -> Shown:
    number = await visit.api.get(_path(visit))
    channels = await visit.api.get(f"{_path(visit)}/channels")
    control = await visit.api.get(f"/controls/number/{segment(number['id'])}")
    holders = {holder["channel_no"]: holder for holder in channels["holders"]}
    last = max([number["max_channels"], *holders])
    return Shown(
        "number.html",
        {
            "number": number,
            "is_whole": channels["is_whole"],
            "channels": [(channel, holders.get(channel)) for channel in range(1, last + 1)],
            "control": control,
            "may_change": visit.who.tenant.is_platform and visit.may(),
        },
    )


async def set_status(visit: PageRequest) -> ActionDone:
    status = visit.form.get("status", "")
    number = await visit.api.patch(_path(visit), {"status": status})
    return ActionDone(f"{number['e164']} is {number['status']}.", back(visit, "/numbers"))


def _path(visit: PageRequest) -> str:
    return f"/numbers/{segment(visit.part('number_id'))}"

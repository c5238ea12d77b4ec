"""Numbers and their channels: which call holds each, and since when."""

from trunkline.console.page_request import ActionDone, PageRequest, Shown, back

# More channels than these are drawn as one bar.
SQUARES_MAX = 120
_ONE = "/numbers/{number_id}"


async def show(visit: PageRequest) -> Shown:
    return Shown("numbers.html", await visit.listed("/numbers", "pool") | {"squares_max": SQUARES_MAX})


async def show_one(visit: PageRequest) -> Shown:
    number = await visit.get(_ONE)
    channels = await visit.get(f"{_ONE}/channels")
    control = await visit.get("/controls/number/{number_id}")
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
    number = await visit.api.patch(visit.path(_ONE), {"status": visit.form.get("status", "")})
    return ActionDone(f"{number['e164']} is {number['status']}.", back(visit, "/numbers"))

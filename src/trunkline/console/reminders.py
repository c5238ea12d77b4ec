"""Reminders: their next times and past occurrences, and pause, skip and cancel."""

from trunkline.console.page_request import ActionDone, PageRequest, Shown, at, posting

UPCOMING = 10
STATUSES = ("ACTIVE", "PAUSED", "ENDED")
_ONE = "/reminders/{reminder_id}"


async def show(visit: PageRequest) -> Shown:
    found = await visit.listed("/reminders", "merchant_id", "status", "phone")
    return Shown("reminders.html", found | {"statuses": STATUSES})


async def show_one(visit: PageRequest) -> Shown:
    reminder = await visit.get(_ONE)
    upcoming = await visit.get(f"{_ONE}/upcoming", {"limit": UPCOMING})
    past = await visit.listed(f"{_ONE}/occurrences")
    values = {"reminder": reminder, "upcoming": upcoming["items"], "may_act": visit.may("leads")}
    return Shown("reminder.html", past | values)


pause = posting(f"{_ONE}/pause", "The reminder is paused. Waiting occurrences are skipped.")
resume = posting(f"{_ONE}/resume", "The reminder is resumed, from its next occurrence on.")
ring_now = posting(
    f"{_ONE}/next", "The next occurrence is due now. Windows, limits and stops apply as for every call."
)


async def skip(visit: PageRequest) -> ActionDone:
    """The next time, or the one that the form names."""
    await visit.post(f"{_ONE}/skip", *({"wall_at"} & visit.form.keys()))
    return ActionDone("The occurrence is skipped.", at(visit.path(_ONE)))


async def cancel(visit: PageRequest) -> ActionDone:
    await visit.api.delete(visit.path(_ONE), {"hang_up": "hang_up" in visit.form})
    return ActionDone("The reminder is cancelled.", at(visit.path(_ONE)))

"""Reminders: their next times and past occurrences, and pause, skip and cancel."""

from trunkline.console.api_client import segment
from trunkline.console.page_request import ActionDone, PageRequest, Shown, at

PAGE = 50
UPCOMING = 10
STATUSES = ("ACTIVE", "PAUSED", "ENDED")


async def show(visit: PageRequest) -> Shown:
    filters = {name: visit.given(name) for name in ("merchant_id", "status", "phone")}
    found = await visit.api.get("/reminders", {**filters, "cursor": visit.given("cursor"), "limit": PAGE})
    return Shown(
        "reminders.html",
        {
            "reminders": found["items"],
            "next_cursor": found["next_cursor"],
            "filters": filters,
            "statuses": STATUSES,
        },
    )


async def show_one(visit: PageRequest) -> Shown:
    reminder = await visit.api.get(_path(visit))
    upcoming = await visit.api.get(f"{_path(visit)}/upcoming", {"limit": UPCOMING})
    past = await visit.api.get(
        f"{_path(visit)}/occurrences", {"limit": PAGE, "cursor": visit.given("cursor")}
    )
    return Shown(
        "reminder.html",
        {
            "reminder": reminder,
            "upcoming": upcoming["items"],
            "past": past["items"],
            "next_cursor": past["next_cursor"],
            "may_act": visit.may("leads"),
        },
    )


async def pause(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_path(visit)}/pause")
    return ActionDone("The reminder is paused. Waiting occurrences are skipped.", _here(visit))


async def resume(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_path(visit)}/resume")
    return ActionDone("The reminder is resumed, from its next occurrence on.", _here(visit))


async def skip(visit: PageRequest) -> ActionDone:
    """The next time, or the one that the form names."""
    wall_at = visit.form.get("wall_at")
    await visit.api.post(f"{_path(visit)}/skip", {"wall_at": wall_at} if wall_at else {})
    return ActionDone("The occurrence is skipped.", _here(visit))


async def ring_now(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_path(visit)}/next")
    return ActionDone(
        "The next occurrence is due now. Windows, limits and stops apply as for every call.", _here(visit)
    )


async def cancel(visit: PageRequest) -> ActionDone:
    await visit.api.delete(_path(visit), {"hang_up": "hang_up" in visit.form})
    return ActionDone("The reminder is cancelled.", _here(visit))


def _path(visit: PageRequest) -> str:
    return f"/reminders/{segment(visit.part('reminder_id'))}"


def _here(visit: PageRequest) -> str:
    return at(_path(visit))

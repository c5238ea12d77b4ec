"""Campaigns: their progress, start, pause and stop, and uploads of leads."""

from typing import get_args

from trunkline.campaigns.lifecycle import Status
from trunkline.console import charts, labels
from trunkline.console.api_client import segment
from trunkline.console.page_request import ActionDone, PageRequest, Shown, at

PAGE = 50
STATUSES = get_args(Status)


async def show(visit: PageRequest) -> Shown:
    filters = {name: visit.given(name) for name in ("merchant_id", "status")}
    found = await visit.api.get("/campaigns", {**filters, "cursor": visit.given("cursor"), "limit": PAGE})
    return Shown(
        "campaigns.html",
        {
            "campaigns": found["items"],
            "next_cursor": found["next_cursor"],
            "filters": filters,
            "statuses": STATUSES,
            "may_act": visit.may("leads"),
        },
    )


async def show_one(visit: PageRequest) -> Shown:
    campaign = await visit.api.get(_path(visit))
    progress = await visit.api.get(f"{_path(visit)}/progress")
    outcomes = progress["outcomes"]
    return Shown(
        "campaign.html",
        {
            "campaign": campaign,
            "progress": progress,
            "outcomes": charts.bars(outcomes, {name: labels.tone(name) for name in outcomes}),
            "may_act": visit.may("leads"),
        },
    )


async def make(visit: PageRequest) -> ActionDone:
    body: dict[str, object] = {
        name: visit.form[name] for name in ("name", "merchant_id", "pool") if name in visit.form
    }
    if percent := visit.form.get("abandon_percent"):
        body["policy"] = {"abandon_max": _share(percent)}
    campaign = await visit.api.post("/campaigns", body)
    return ActionDone("A draft: upload its leads, then start it.", at(f"/campaigns/{campaign['id']}"))


async def start(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_path(visit)}/start", {})
    return ActionDone("The campaign runs: its leads are called within its windows.", _here(visit))


async def pause(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_path(visit)}/pause", _reason(visit))
    return ActionDone("The campaign is paused: within a second no new call is started.", _here(visit))


async def resume(visit: PageRequest) -> ActionDone:
    await visit.api.post(f"{_path(visit)}/resume", {})
    return ActionDone("The campaign runs again.", _here(visit))


async def stop(visit: PageRequest) -> ActionDone:
    body = _reason(visit) | {"hang_up": "hang_up" in visit.form}
    await visit.api.post(f"{_path(visit)}/stop", body)
    return ActionDone("The campaign is stopped for good. Waiting leads are not called.", _here(visit))


def _share(percent: str) -> float | str:
    """A value that is no number is sent as it is: the API reports the problem."""
    try:
        return round(float(percent) / 100, 6)
    except ValueError:
        return percent


def _reason(visit: PageRequest) -> dict[str, object]:
    return {"reason": visit.form.get("reason", "")}


def _path(visit: PageRequest) -> str:
    return f"/campaigns/{segment(visit.part('campaign_id'))}"


def _here(visit: PageRequest) -> str:
    return at(_path(visit))

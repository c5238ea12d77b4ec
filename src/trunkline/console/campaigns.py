"""Campaigns: their progress, start, pause and stop, and uploads of leads."""

from typing import get_args

from trunkline.console import charts, labels
from trunkline.console.page_request import ActionDone, PageRequest, Shown, at, posting
from trunkline.schema.campaigns import CampaignStatus

_ONE = "/campaigns/{campaign_id}"


async def show(visit: PageRequest) -> Shown:
    found = await visit.listed("/campaigns", "merchant_id", "status")
    return Shown(
        "campaigns.html", found | {"statuses": get_args(CampaignStatus), "may_act": visit.may("leads")}
    )


async def show_one(visit: PageRequest) -> Shown:
    campaign = await visit.get(_ONE)
    progress = await visit.get(f"{_ONE}/progress")
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


start = posting(f"{_ONE}/start", "The campaign runs: its leads are called within its windows.")
pause = posting(f"{_ONE}/pause", "The campaign is paused: within a second no new call is started.", "reason")
resume = posting(f"{_ONE}/resume", "The campaign runs again.")


async def stop(visit: PageRequest) -> ActionDone:
    await visit.post(f"{_ONE}/stop", "reason", hang_up="hang_up" in visit.form)
    return ActionDone("The campaign is stopped for good. Waiting leads are not called.", at(visit.path(_ONE)))


def _share(percent: str) -> float | str:
    """A value that is no number is sent as it is: the API reports the problem."""
    try:
        return round(float(percent) / 100, 6)
    except ValueError:
        return percent

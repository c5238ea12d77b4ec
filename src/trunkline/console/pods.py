"""Pods as squares, by pool. Green is free, blue has a call, grey takes none."""

from typing import Any

from trunkline.console.labels import natural
from trunkline.console.page_request import ActionDone, PageRequest, Shown, at, back

# The API's largest page, and how many of them are drawn: 1,000 pods are still readable.
PAGE = 200
PAGES_MAX = 5


async def show(visit: PageRequest) -> Shown:
    status = await visit.api.get("/status")
    pods, is_whole = await _all(visit, "/pods")
    wanted = visit.given("call")
    # The pools in the order of the router, including empty ones, each with its pods by name.
    pods.sort(key=lambda pod: natural(pod["pod_name"]))
    tiers = dict.fromkeys([*status["free"], *(pod["tier"] for pod in pods)])
    return Shown(
        "pods.html",
        {
            "status": status,
            "lots": [
                {
                    "tier": tier,
                    "room": status["free"].get(tier, 0),
                    "pods": [pod for pod in pods if pod["tier"] == tier],
                }
                for tier in tiers
            ],
            "is_whole": is_whole,
            "wanted": wanted,
            "holder": next((pod for pod in pods if wanted and wanted in pod["calls"]), None),
            "may_act": visit.may("router"),
        },
    )


async def show_one(visit: PageRequest) -> Shown:
    pod = await visit.get("/pod/{name}")
    calls, _ = await _all(visit, "/allocations")
    return Shown(
        "pod.html",
        {
            "pod": pod,
            "calls": [call for call in calls if call["pod_name"] == pod["pod_name"]],
            "may_act": visit.may("router"),
        },
    )


async def drain(visit: PageRequest) -> ActionDone:
    name = visit.part("name")
    drained = await visit.api.post("/drain", {"pod_name": name})
    note = " It still has a call." if drained["has_active_call"] else ""
    return ActionDone(f"{name} takes no new calls.{note}", back(visit, "/pods"))


async def undrain(visit: PageRequest) -> ActionDone:
    drained = await visit.api.delete(visit.path("/drain/{name}"))
    return ActionDone(f"{visit.part('name')}: {drained['message']}.", at(visit.path("/pods/{name}")))


async def _all(visit: PageRequest, path: str) -> tuple[list[dict[str, Any]], bool]:
    """The items of a list, up to a limit; and whether these are all."""
    items: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await visit.api.get(path, {"limit": PAGE, "cursor": cursor})
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items, True
    return items, False

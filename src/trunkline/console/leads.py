"""Leads: finding them. One field finds by id, phone or request id; the others narrow the list."""

import re
from typing import Any
from uuid import UUID

from trunkline.console.asking import Refused
from trunkline.console.visits import Shown, Visit
from trunkline.states import LeadStatus

PAGE = 50
_PHONE = re.compile(r"\+?[0-9 ()./-]{6,25}")


async def show(visit: Visit) -> Shown:
    problem = None
    try:
        found = await _find(visit)
    except Refused as refused:
        if refused.status not in (400, 404, 422):
            raise
        problem, found = refused.sentence, {"items": [], "next_cursor": None}
    filters = {name: visit.given(name) for name in ("find", "status", "merchant_id", "campaign_id")}
    return Shown(
        "leads.html",
        {
            "leads": found["items"],
            "next_cursor": found["next_cursor"],
            "filters": filters,
            "is_filtered": any(filters.values()),
            "statuses": [status.value for status in LeadStatus],
            "problem": problem,
            "may_act": visit.may("leads"),
            "may_stop": visit.may(),
        },
    )


async def _find(visit: Visit) -> dict[str, Any]:
    wanted = visit.given("find")
    if wanted is not None and _is_id(wanted):
        return {"items": [await visit.api.get(f"/leads/{wanted}")], "next_cursor": None}
    query = {
        "status": visit.given("status"),
        "merchant_id": visit.given("merchant_id"),
        "campaign_id": visit.given("campaign_id"),
        "cursor": visit.given("cursor"),
        "limit": PAGE,
    }
    if wanted is not None:
        query["phone" if _PHONE.fullmatch(wanted) else "request_id"] = wanted
    found: dict[str, Any] = await visit.api.get("/leads", query)
    return found


def _is_id(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False

"""The search for leads. One field searches by id, phone or request id; the others filter the list."""

import re
from typing import Any
from uuid import UUID, uuid4

from trunkline.console.api_client import ApiRefused
from trunkline.console.labels import label, plural
from trunkline.console.lead import utc
from trunkline.console.page_request import PAGE, ActionDone, PageRequest, Shown, at
from trunkline.model import Outcome
from trunkline.states import LeadStatus

# In the order in which an operator is likely to reopen them.
OUTCOMES = ("NO_AGENT", *(each.value for each in Outcome if each is not Outcome.NO_AGENT))
_PHONE = re.compile(r"\+?[0-9 ()./-]{6,25}")


async def show(visit: PageRequest) -> Shown:
    problem = None
    try:
        found = await _find(visit)
    except ApiRefused as refused:
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
            "order_id": str(uuid4()),
            "outcomes": OUTCOMES,
            "may_act": visit.may("leads"),
            "may_stop": visit.may(),
        },
    )


async def reopen(visit: PageRequest) -> ActionDone:
    """Count first, then reopen, both with the same form."""
    form = visit.form
    is_dry = form.get("do") != "reopen"
    answer = await visit.post(
        "/leads/reopen",
        "reason",
        "request_id",
        *({"merchant_id", "campaign_id"} & form.keys()),
        outcomes=[form.get("outcome", "")],
        finished_since=utc(form.get("since")),
        dry_run=is_dry,
    )
    if is_dry:
        return ActionDone(f"{plural(answer['matched'], 'lead')} fit.", at("/leads"), keeps_form=True)
    sentence = f"{plural(answer['reopened'], 'lead')} will be called again."
    for why, count in answer["refused"].items():
        sentence += f" {count} may not: {label(why)}."
    if not answer["complete"]:
        sentence += "There are more: submit it once more."
    return ActionDone(sentence, at("/leads"), keeps_form=not answer["complete"])


async def _find(visit: PageRequest) -> dict[str, Any]:
    wanted = visit.given("find")
    if wanted is not None and _is_id(wanted):
        return {"items": [await visit.api.get(f"/leads/{wanted}")], "next_cursor": None}
    names = ("status", "merchant_id", "campaign_id", "cursor")
    query: dict[str, object] = {name: visit.given(name) for name in names} | {"limit": PAGE}
    if wanted is not None:
        query["phone" if _PHONE.fullmatch(wanted) else "request_id"] = wanted
    found: dict[str, Any] = await visit.api.get("/leads", query)
    return found


def _is_id(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False

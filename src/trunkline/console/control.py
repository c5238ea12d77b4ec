"""Control: stops, stop and resume with a reason, alarms; and the flags, which `flags` sets."""

from typing import Any

from trunkline.console.api_client import ApiRefused, segment
from trunkline.console.audit import key_names
from trunkline.console.page_request import ActionDone, PageRequest, Shown, back

SCOPES = ("kill_switch", "promoter", "reseller", "merchant", "campaign", "number", "carrier")
_WHOLE = {"kill_switch": "kill-switch", "promoter": "promoter"}
LISTED = 100


async def show(visit: PageRequest) -> Shown:
    lists = {"stops": "/controls", "flags": "/flags", "alarms": "/alarms", "merchants": "/merchants"}
    return Shown(
        "control.html",
        {name: (await visit.get(path, {"limit": LISTED}))["items"] for name, path in lists.items()}
        | {
            "scopes": SCOPES if visit.who.tenant.is_platform else SCOPES[2:],
            "names": await key_names(visit),
            "wanted": {name: visit.given(name) for name in ("scope", "subject")},
            "may_act": visit.may(),
            "is_platform": visit.who.tenant.is_platform,
        },
    )


async def stop(visit: PageRequest) -> ActionDone:
    path, name = _subject(visit)
    body: dict[str, Any] = {"reason": visit.form.get("reason", "")}
    if "minutes" in visit.form:
        body["duration_s"] = visit.number("minutes") * 60
    if "ramp_s" in visit.form:
        body["ramp_s"] = visit.number("ramp_s")
    await visit.api.put(path, body)
    return ActionDone(f"{name} is stopped: no new call is started within a second.", back(visit, "/control"))


async def resume(visit: PageRequest) -> ActionDone:
    path, name = _subject(visit)
    query: dict[str, Any] = {"reason": visit.form.get("reason", "")}
    if "ramp_s" in visit.form:
        query["ramp_s"] = visit.number("ramp_s")
    if (set_by := visit.form.get("set_by")) and visit.form.get("scope") not in _WHOLE:
        query["set_by"] = set_by
    state = await visit.api.delete(path, query)
    result = "goes on" if state["state"] != "stopped" else "is still stopped by another level"
    return ActionDone(f"{name} {result}.", back(visit, "/control"))


async def clear_alarm(visit: PageRequest) -> ActionDone:
    alarm = await visit.post("/alarms/{alarm_id}/clear", "reason")
    return ActionDone(f"The alarm {alarm['name']} is cleared.", back(visit, "/control"))


def _subject(visit: PageRequest) -> tuple[str, str]:
    """The API's path of a form's subject, and its name for people."""
    scope, subject = visit.form.get("scope", ""), visit.form.get("subject", "")
    if scope not in SCOPES:
        raise ApiRefused(422, "invalid_request", "Choose what to stop.")
    if scope in _WHOLE:
        return f"/controls/{_WHOLE[scope]}", "Everything" if scope == "kill_switch" else "The promoter"
    # The subject of a campaign is stored as merchant/campaign; its address is the campaign alone.
    return f"/controls/{scope}/{segment(subject.rpartition('/')[2])}", f"The {scope} {subject}"

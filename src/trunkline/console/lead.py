"""One lead: its timeline, why it is not called, and its actions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from trunkline.console import labels
from trunkline.console.audit import key_names
from trunkline.console.page_request import ActionDone, PageRequest, Shown, at, back

_ONE = "/leads/{lead_id}"
# Fields that have their own place on the page; the others are in the table.
_SEPARATE = {"attempts", "decisions", "timeline", "payload", "enrichments"}


async def show(visit: PageRequest) -> Shown:
    lead = await visit.get(_ONE)
    why = await visit.get(f"{_ONE}/why") if lead["status"] != "FINISHED" else None
    return Shown(
        "lead.html",
        {
            "lead": lead,
            "why": why,
            "closed": [check for check in why["checks"] if not check["open"]] if why else [],
            "story": story(lead),
            "learnt": list(learnt(lead)),
            "facts": dict(facts(lead)),
            "names": await key_names(visit),
            "order_id": str(uuid4()),
            "may_act": visit.may("leads"),
            "may_stop": visit.may(),
        },
    )


def facts(lead: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields beside the timeline, with times as text."""
    for name, value in lead.items():
        if name not in _SEPARATE and value not in (None, ""):
            yield name, labels.exact(value) if name.endswith("_at") else value


@dataclass(slots=True)
class Chapter:
    """The timeline events of one attempt, or (None) of the lead itself."""

    attempt: dict[str, Any] | None
    # Which of the lead's attempts it is. Not `attempt_no`, which repeats when one is not counted.
    no: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)


def story(lead: dict[str, Any]) -> list[Chapter]:
    """The timeline in order, grouped by attempt. Events of the lead during a call are in the group of that call."""
    attempts = {each["id"]: (each, no) for no, each in enumerate(lead["attempts"], start=1)}
    events = lead["timeline"]
    last = {each["attempt_id"]: place for place, each in enumerate(events)}
    chapters: list[Chapter] = []
    by_attempt: dict[str, Chapter] = {}
    current: str | None = None
    for place, each in enumerate(events):
        attempt_id = each["attempt_id"]
        if attempt_id is not None:
            if attempt_id not in by_attempt:
                by_attempt[attempt_id] = Chapter(*attempts[attempt_id])
                chapters.append(by_attempt[attempt_id])
                current = attempt_id
            by_attempt[attempt_id].events.append(_without_its_call(each, attempts[attempt_id][0]))
        elif current is not None and place < last[current]:
            by_attempt[current].events.append(each)
        elif chapters and chapters[-1].attempt is None:
            chapters[-1].events.append(each)
        else:
            chapters.append(Chapter(None, events=[each]))
    return chapters


def _without_its_call(event: dict[str, Any], attempt: dict[str, Any]) -> dict[str, Any]:
    """Without the carrier's id of the call, which the attempt shows; another id is kept."""
    details = event.get("details", {})
    if details.get("call_id") != attempt.get("carrier_call_id"):
        return event
    return {**event, "details": {name: value for name, value in details.items() if name != "call_id"}}


def learnt(lead: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """By call: the agent's report, recordings and enrichments."""
    for attempt in lead["attempts"]:
        enriched = [each for each in lead["enrichments"] if each["attempt_id"] == attempt["id"]]
        if attempt["report"] or attempt["recordings"] or enriched:
            yield {**attempt, "enrichments": enriched}


async def call_now(visit: PageRequest) -> ActionDone:
    await visit.post(f"{_ONE}/dispatch-now")
    return ActionDone("The lead is due now. Windows, limits and stops apply as for every call.", _here(visit))


async def change(visit: PageRequest) -> ActionDone:
    body: dict[str, object] = {}
    if when := utc(visit.form.get("scheduled_at")):
        body["scheduled_at"] = when
    for name in ("priority", "max_attempts"):
        if (text := visit.form.get(name, "")).isdecimal():
            body[name] = int(text)
    await visit.api.patch(visit.path(_ONE), body)
    return ActionDone("The lead is changed.", _here(visit))


async def abort(visit: PageRequest) -> ActionDone:
    query = {"reason": visit.form.get("reason"), "hang_up": "hang_up" in visit.form}
    lead = await visit.api.delete(visit.path(_ONE), query)
    is_over = lead["status"] == "FINISHED"
    said = "The lead is aborted." if is_over else "The lead is being called, and ends with this call."
    return ActionDone(said, _here(visit))


async def reopen(visit: PageRequest) -> ActionDone:
    when = utc(visit.form.get("scheduled_at"))
    lead = await visit.post(
        f"{_ONE}/reopen", "reason", "request_id", **({"scheduled_at": when} if when else {})
    )
    again = "The lead waits to be called again. Windows, limits, lists and stops apply as for every call."
    is_open = lead["status"] != "FINISHED"
    return ActionDone(again if is_open else "This request was carried out before.", _here(visit))


async def never_call(visit: PageRequest) -> ActionDone:
    """The merchant of this lead never calls this person again."""
    lead = await visit.get(_ONE)
    body = {"phone": lead["phone"], "merchant_id": lead["merchant_id"]}
    if reason := visit.form.get("reason"):
        body["reason"] = reason
    await visit.api.post("/do-not-call", body)
    return ActionDone(f"{lead['merchant_id']} will not call {lead['phone']} again.", _here(visit))


def utc(picked: str | None) -> str | None:
    """The value of a date picker in the API's format."""
    if not picked:
        return None
    return f"{picked}:00Z" if len(picked) == len("2030-05-01T09:30") else f"{picked}Z"


def _here(visit: PageRequest) -> str:
    return back(visit, "/leads") if visit.form.get("back") else at(visit.path(_ONE))

"""One lead: what happened to it, why it is not called, and what can be done about it."""

from collections.abc import Iterator
from typing import Any

from trunkline.console import people, words
from trunkline.console.asking import segment
from trunkline.console.visits import Done, Shown, Visit, at, back

# What a person sees first of a lead; the rest is in the table below.
_ASIDE = {"attempts", "decisions", "timeline", "payload", "enrichments"}


async def show(visit: Visit) -> Shown:
    lead = await visit.api.get(_path(visit))
    why = await visit.api.get(f"{_path(visit)}/why") if lead["status"] != "FINISHED" else None
    return Shown(
        "lead.html",
        {
            "lead": lead,
            "why": why,
            "closed": [check for check in why["checks"] if not check["open"]] if why else [],
            "story": list(story(lead)),
            "learnt": list(learnt(lead)),
            "facts": dict(facts(lead)),
            "names": await people.names(visit),
            "may_act": visit.may("leads"),
            "may_stop": visit.may(),
        },
    )


def facts(lead: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What there is to know beside the story, moments in words."""
    for name, value in lead.items():
        if name not in _ASIDE and value not in (None, ""):
            yield name, words.exact(value) if name.endswith("_at") else value


def story(lead: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The timeline with the refusals in it, oldest first: each is told when it was first met."""
    refusals = (
        {
            "at": each["first_at"],
            "source": "decision",
            "what": each["reason"],
            "reason": f"{each['times']} times" if each["times"] > 1 else "once",
            "actor": None,
            "details": {"until": each["until"], "last_at": each["last_at"], "subject": each["subject"]},
        }
        for each in lead["decisions"]
    )
    yield from sorted([*lead["timeline"], *refusals], key=lambda each: str(each["at"]))


def learnt(lead: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of each call that left something behind: what its agent reported, its recordings, what was made of them."""
    for attempt in lead["attempts"]:
        enriched = [each for each in lead["enrichments"] if each["attempt_id"] == attempt["id"]]
        if attempt["report"] or attempt["recordings"] or enriched:
            yield {**attempt, "enrichments": enriched}


async def call_now(visit: Visit) -> Done:
    await visit.api.post(f"{_path(visit)}/dispatch-now")
    return Done("It is due now. Windows, limits and stops hold as for every call.", _here(visit))


async def change(visit: Visit) -> Done:
    body: dict[str, object] = {}
    if when := visit.form.get("scheduled_at"):
        body["scheduled_at"] = f"{when}:00Z" if len(when) == len("2030-05-01T09:30") else f"{when}Z"
    for name in ("priority", "max_attempts"):
        if (text := visit.form.get(name, "")).isdecimal():
            body[name] = int(text)
    await visit.api.patch(_path(visit), body)
    return Done("The lead is changed.", _here(visit))


async def abort(visit: Visit) -> Done:
    query = {"reason": visit.form.get("reason"), "hang_up": "hang_up" in visit.form}
    lead = await visit.api.delete(_path(visit), query)
    is_over = lead["status"] == "FINISHED"
    return Done(
        "The lead is aborted." if is_over else "It is being called, and ends with this call.", _here(visit)
    )


async def never_call(visit: Visit) -> Done:
    """The merchant of this lead never calls this person again."""
    lead = await visit.api.get(_path(visit))
    body = {"phone": lead["phone"], "merchant_id": lead["merchant_id"]}
    if reason := visit.form.get("reason"):
        body["reason"] = reason
    await visit.api.post("/do-not-call", body)
    return Done(f"{lead['merchant_id']} will not call {lead['phone']} again.", _here(visit))


def _path(visit: Visit) -> str:
    return f"/leads/{segment(visit.part('lead_id'))}"


def _here(visit: Visit) -> str:
    return back(visit, "/leads") if visit.form.get("back") else at(f"/leads/{visit.part('lead_id')}")

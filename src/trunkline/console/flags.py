"""Feature flags: the switch, the percentage, and the tenants for which it is set independently of the percentage."""

import re
from collections.abc import Mapping
from typing import Any

from trunkline.console.api_client import ApiRefused
from trunkline.console.labels import plural
from trunkline.console.page_request import ActionDone, PageRequest, at

_ONE = "/flags/{flag}"
_BETWEEN = re.compile(r"[\s,;]+")


async def set_flag(visit: PageRequest) -> ActionDone:
    """Replaces the flag: the form shows all its fields. Preview first, then set, both with the same form."""
    name, form, place = visit.part("flag"), visit.form, at("/control") + "#flags"
    rule: dict[str, Any] = {
        "enabled": "enabled" in form,
        "percentage": visit.number("percentage", 100),
        "resellers": named(form, "resellers"),
        "merchants": named(form, "merchants"),
    }
    foreseen = await visit.post(f"{_ONE}/preview", **rule)
    if form.get("do") == "preview":
        return ActionDone(_preview(name, foreseen), place, keeps_form=True)
    order = {"reason": form.get("reason", ""), "version": visit.number("version")}
    await visit.api.put(visit.path(_ONE), rule | order | _overdue(visit, foreseen["overdue"]))
    return ActionDone(f"The flag {name} is set.", place)


async def unset(visit: PageRequest) -> ActionDone:
    form = visit.form
    # Unset, the flag has its default in the code: on.
    foreseen = await visit.post(f"{_ONE}/preview", enabled=True)
    order = {"reason": form.get("reason", ""), "version": visit.number("version")}
    await visit.api.delete(visit.path(_ONE), order | _overdue(visit, foreseen["overdue"]))
    return ActionDone(f"The flag {visit.part('flag')} is back at its default.", at("/control") + "#flags")


def _preview(name: str, foreseen: Mapping[str, Any]) -> str:
    said = (
        f"{name} would be turned on for {plural(foreseen['turned_on'], 'merchant')} and off for "
        f"{plural(foreseen['turned_off'], 'merchant')}."
    )
    overdue = foreseen["overdue"]
    return f"{said} {plural(overdue, 'lead')} {'was' if overdue == 1 else 'were'} due before."


def _overdue(visit: PageRequest, overdue: int) -> dict[str, int]:
    """The form must confirm the number of overdue leads that the change calls or skips."""
    if "take_overdue" in visit.form:
        return {"take_overdue": visit.number("take_overdue")}
    if overdue and "leave_overdue" not in visit.form:
        raise ApiRefused(
            422,
            "invalid_request",
            f"{plural(overdue, 'lead')} {'was' if overdue == 1 else 'were'} due before this turns them on. Say that "
            "another system has called them, or how many to call.",
        )
    return {}


def named(form: Mapping[str, str], kind: str) -> dict[str, bool]:
    """The ids in the two fields of a kind. One id in both is contradictory, and is refused."""
    on, off = ({*_BETWEEN.split(form.get(f"{kind}_{state}", ""))} - {""} for state in ("on", "off"))
    if both := sorted(on & off):
        raise ApiRefused(
            422, "invalid_request", f"{', '.join(both)}: it cannot be on and off. Take it out of one."
        )
    return dict.fromkeys(sorted(on), True) | dict.fromkeys(sorted(off), False)

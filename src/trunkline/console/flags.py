"""Feature flags: the switch, the percentage, and those for whom it is on or off whatever the percentage says."""

import re
from collections.abc import Iterator, Mapping

from trunkline.console.asking import Refused, segment
from trunkline.console.visits import Done, Visit, at

_BETWEEN = re.compile(r"[\s,;]+")


async def set_flag(visit: Visit) -> Done:
    """As a whole: the form shows everything that the flag says."""
    name, form = visit.part("flag"), visit.form
    body = {
        "enabled": "enabled" in form,
        "percentage": _percentage(form.get("percentage", "100")),
        "resellers": named(form, "resellers"),
        "merchants": named(form, "merchants"),
        "reason": form.get("reason", ""),
    }
    await visit.api.put(f"/flags/{segment(name)}", body)
    return Done(f"The flag {name} is set.", at("/control") + "#flags")


async def unset(visit: Visit) -> Done:
    name = visit.part("flag")
    await visit.api.delete(f"/flags/{segment(name)}", {"reason": visit.form.get("reason", "")})
    return Done(f"The flag {name} is back at its default.", at("/control") + "#flags")


def named(form: Mapping[str, str], kind: str) -> dict[str, bool]:
    """Whom the two fields of a kind name. One id in both says nothing, and is refused."""
    on, off = set(_ids(form.get(f"{kind}_on", ""))), set(_ids(form.get(f"{kind}_off", "")))
    if both := sorted(on & off):
        raise Refused(
            422, "invalid_request", f"{', '.join(both)}: it cannot be on and off. Take it out of one."
        )
    return dict.fromkeys(sorted(on), True) | dict.fromkeys(sorted(off), False)


def _ids(text: str) -> Iterator[str]:
    return (each for each in _BETWEEN.split(text) if each)


def _percentage(text: str) -> int:
    if not text.isdecimal():
        raise Refused(422, "invalid_request", "A number is wrong.", {"percentage": "Give a whole number."})
    return int(text)

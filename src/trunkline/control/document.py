"""Generates the table of a page from the alarms: `python -m trunkline.control.document docs/reference/alarms.md`."""

import re
import sys
from pathlib import Path

from trunkline.control.alarms import DEFINITIONS, AlarmDefinition, Measured, Reported

_SECTION = re.compile(r"(?<=<!-- alarms -->\n).*(?=<!-- /alarms -->)", re.DOTALL)


def table() -> str:
    head = (
        "| Alarm | Severity | Per | Meaning | Raised and cleared | What to do |\n|---|---|---|---|---|---|\n"
    )
    return head + "".join(map(_row, DEFINITIONS.values()))


def _row(alarm: AlarmDefinition) -> str:
    return (
        f"| `{alarm.name}` | {alarm.severity} | {alarm.subject} | {alarm.meaning} | {_rule(alarm.rule)} "
        f"| {alarm.action} |\n"
    )


def _rule(rule: Measured | Reported) -> str:
    if isinstance(rule, Reported):
        quiet = "by a person" if rule.quiet_s is None else f"not seen for {rule.quiet_s:g} s"
        return f"when it is seen; cleared: {quiet}"
    raised, cleared = f"over {rule.above:g} {rule.unit}", f"at most {rule.clear_at:g}"
    return f"{raised}{_lasting(rule.for_s)}; cleared: {cleared}{_lasting(rule.clear_for_s)}"


def _lasting(seconds: float) -> str:
    return f" for {seconds:g} s" if seconds else ""


def rewritten(page: str) -> str:
    """The page with its table brought up to date."""
    return _SECTION.sub(lambda _: f"\n{table()}\n", page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewritten(path.read_text()))

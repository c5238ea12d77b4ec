"""Keeps the result of a run beside the documents: figures as JSON, and a page that says what they mean.

make proof-refusals
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from bench.agents.proof import FOLDER, commit_name, shown
from bench.refusals.judge import Verdict
from bench.report import Report

COLUMNS = {
    "leads": "leads",
    "requests_at_first": "requests at first",
    "requests_while_refused": "while refused",
    "requests_per_minute_max": "in a minute, at most",
    "requests_at_a_time_max": "at a time",
    "same_person_twice_in_a_row": "same person twice in a row",
    "other_number_pause_max_s": "other number's longest pause, s",
    "leads_ended": "leads ended",
    "leads_waiting": "leads waiting",
    "healed_within_s": "last dialled after healing, s",
    "healthy_leads": "healthy leads",
    "healthy_late_max_s": "latest, s",
    "met": "met",
}
PAGE = """# A refusal costs only what it blames: results of a run

`make proof-refusals` wrote this page on {date}, at commit {commit}. {verdict}

Two dispatchers, a simulated carrier, 900 leads that are due on an account that was healthy until the fault, and
beside it an account that stays healthy, with two leads a second. Each fault lasts three minutes{turns}. *Requests at
first* are those within two seconds (15 s where the carrier hangs: its first requests time out after 10); later ones
are counted *while refused*. *Ended* are leads that ended without a call. Requests are counted in front of the
carrier, and from Postgres where no carrier could be reached ([Benchmarks](benchmarks.md)).

Where the carrier hangs, a request in five seconds is what the rule for calls in doubt allows; their ten minutes in
doubt were skipped in Postgres when the fault was healed. The lead whose destination is refused with an unknown code
ends after three refusals, while all others are dialled.

The account whose number is refused has a second one, with a pace that leaves leads waiting until the fault is over.
Only requests from the refused one are counted as such; the second may never pause for ten seconds, 50 % of the
shortest cooldown of an account.

{table}
"""


def keep(verdicts: Sequence[Verdict], total: Report, *, at_once: bool = False) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    date, commit = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), commit_name()
    content = {
        "commit": commit,
        "date": date,
        "total": asdict(total),
        "runs": [verdict.line() for verdict in verdicts],
    }
    (FOLDER / "refusals.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    turns = ", all of them at the same time" if at_once else ""
    told = "Every goal was met." if total.met else "Not every goal was met."
    page = PAGE.format(date=date, commit=commit, verdict=told, turns=turns, table=_table(verdicts))
    (FOLDER / "refusals.md").write_text(page, encoding="utf-8")


def _table(verdicts: Sequence[Verdict]) -> str:
    head = ["fault", *COLUMNS.values()]
    rows = [
        [one.fault.replace("_", " "), *(shown(getattr(one, name)) for name in COLUMNS)] for one in verdicts
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])

"""Keeps the result of a run beside the documents: figures as JSON, and a page that says what they mean.

make proof-refusals
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from bench.agents.proof import FOLDER, commit_name, shown
from bench.refusals.judge import Verdict

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

`make proof-refusals` writes this page. {verdict}

Two dispatchers, a simulated carrier, 900 leads that are due on an account that was healthy until the fault, and
beside it an account that stays healthy, with two leads a second. Each fault lasts three minutes. *Requests at
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


def keep(verdicts: Sequence[Verdict]) -> None:
    """The runs of now replace earlier ones of the same faults; the others stay, with their commit."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "refusals.json"
    stamp = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "commit": commit_name()}
    known = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    runs = {run["fault"]: run for run in known} | {one.fault: one.line() | stamp for one in verdicts}
    path.write_text(json.dumps({"runs": [*runs.values()]}, indent=1) + "\n", encoding="utf-8")
    missed = [name for name, run in runs.items() if not run["met"]]
    verdict = f"Not met: {', '.join(missed)}." if missed else "Every goal was met."
    page = PAGE.format(verdict=verdict, table=_table([*runs.values()]))
    (FOLDER / "refusals.md").write_text(page, encoding="utf-8")


def _table(runs: Sequence[Mapping[str, object]]) -> str:
    head = ["fault", *COLUMNS.values(), "commit", "date"]
    rows = [
        [
            str(run["fault"]).replace("_", " "),
            *(shown(run.get(name)) for name in (*COLUMNS, "commit", "date")),
        ]
        for run in runs
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])

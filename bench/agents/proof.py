"""Keeps the result of a run beside the documents: figures as JSON, and a page that says what they mean.

make proof-agents
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.agents import judge
from bench.agents.faults import FAULTS
from bench.agents.judge import Verdict
from bench.agents.scenario import AWAY_MIN

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "proof"
COLUMNS = {
    "answered": "answered",
    "answered_while_engine_away": "of them, engine away",
    "without_agent": "without an agent",
    "without_agent_while_one_was_free": "while one was free",
    "callers_without_agent": "callers without one",
    "people_at_killed_pods": "at killed pods",
    "people_dropped": "dropped",
    "two_calls_on_exclusive_pod": "two calls on a pod",
    "answers_not_documents": "not a document",
    "answers_never": "never answered",
    "answers_slow": "answers over 1.2 s",
    "answer_max_ms": "slowest answer, ms",
    "leads_recorded_wrongly": "leads wrong",
    "exotel_answered": "Exotel answered",
    "exotel_without_agent": "Exotel without",
    "exotel_without_agent_unexcused": "unexcused",
    "exotel_agent_unknown": "agent unknown",
    "dials_again_s": "dials again, s",
    "dials_per_s_without_valkey": "dials/s without Valkey",
    "met": "met",
}
PAGE = """# Every answered call gets an agent: results of the runs

`make proof-agents` writes this page. {verdict}

Two processes of each role behind nginx, pods of the agent library with their default heartbeat, a simulated carrier
with accounts at Twilio, Plivo and Exotel. 30 channels, leads of a gold and a standard merchant offered at 3 a second,
talks of 8 to 20 s, 20 inbound calls in each run. Each fault is injected repeatedly, on an installation of its own.
Counted from the carrier's ledger and the pods' own records ([Benchmarks](benchmarks.md)).

A run meets its goals only if at least 60 calls were answered while the engine was down, where the fault takes one
down (`too_few_away` otherwise). Every answer webhook gets its document within 1.2 s, except where a process is
stopped (*api stopped*): nginx times out after 1.5 s and sends the request to another process, so there the limit is
2.7 s. A cell is empty where a run did not count that yet.

Exotel can neither hold a call nor request a second document, so its calls are counted apart, and one without an agent
is excused if

- an engine was down within 1.2 s of the answer, or
- its stream led to a pod that died, was leaving or took no streams within the 6 s that opening one may take, or
- its document had no stream, and some pod was lost between 6 s before the dial and 1.2 s after the answer, or
- it was inbound (no agent is reserved for inbound calls), and a pod was down, or every pod that takes them was in a
  call or reserved for a ringing phone.

All others are *unexcused*, and none may be. Exotel does not report the fate of a stream: an excused call may be
recorded as ANSWERED with `agent: unknown`, and its lead is not called again. Every other lead has to be recorded as
the ledger shows.

A commit with `-dirty` differs by the pages of this folder alone, which earlier runs had written.

{table}
"""


def keep(verdicts: Sequence[Verdict]) -> None:
    """What was run now takes the place of what was known of it; the other runs stay, with their commit, and are judged
    by the goals of today."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "agents.json"
    told = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "commit": commit_name()}
    known = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    runs = {(run["pods"], run["fault"]): judged_again(run) for run in known}
    runs |= {(one.pods, one.fault): one.line() | told for one in verdicts}
    ordered = [runs[at] for at in sorted(runs, key=lambda at: (-at[0], [*FAULTS].index(at[1])))]
    path.write_text(json.dumps({"runs": ordered}, indent=1) + "\n", encoding="utf-8")
    missed = [run for run in ordered if not run["met"]]
    verdict = f"Of {len(ordered)} runs {len(ordered) - len(missed)} met every goal."
    (FOLDER / "agents.md").write_text(PAGE.format(verdict=verdict, table=_table(ordered)), encoding="utf-8")


def judged_again(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run that was kept, by its figures. Of one that broke there are none."""
    names = {one.name for one in fields(Verdict)}
    verdict = Verdict(**{name: value for name, value in run.items() if name in names})
    if "broke" in verdict.examples:
        return dict(run)
    if FAULTS[verdict.fault].takes_engine_away:
        verdict.away_min = max(verdict.away_min, AWAY_MIN)
    missed = judge.missed_goals(verdict)
    examples = {name: told for name, told in verdict.examples.items() if name != "missed"}
    return {
        **run,
        "away_min": verdict.away_min,
        "met": not missed,
        "examples": examples | ({"missed": missed} if missed else {}),
    }


def _table(runs: Sequence[Mapping[str, object]]) -> str:
    head = ["fault", "pods", *COLUMNS.values(), "commit", "date"]
    rows = [
        [
            str(run["fault"]).replace("_", " "),
            *(shown(run.get(name)) for name in ("pods", *COLUMNS, "commit", "date")),
        ]
        for run in runs
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def commit_name() -> str:
    """With a mark where files differ from it, other than the pages that runs like this one write."""
    name = _git("rev-parse", "--short=12", "HEAD") or "unknown"
    is_dirty = bool(_git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/proof"))
    return f"{name}-dirty" if is_dirty else name


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()

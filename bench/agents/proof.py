"""Keeps the result of a run beside the documents: figures as JSON, and a page that says what they mean.

make proof-agents
"""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.agents.judge import Verdict
from bench.report import Report

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
    "answer_max_ms": "slowest answer, ms",
    "leads_recorded_wrongly": "leads wrong",
    "exotel_answered": "Exotel answered",
    "exotel_without_agent": "Exotel without",
    "exotel_without_agent_unexcused": "unexcused",
    "dials_again_s": "dials again, s",
    "dials_per_s_without_valkey": "dials/s without Valkey",
    "met": "met",
}
PAGE = """# An agent for everybody who answers: what a run showed

`make proof-agents` wrote this page on {date}, at commit {commit}. {verdict}

Two processes of each role behind nginx, pods of the agent library with their default heartbeat, a simulated
carrier with accounts at Twilio, Plivo and Exotel. 30 channels, leads of a gold and a standard merchant offered
at 3 a second, talks of 8 to 20 s, 20 people who ring us in each run. Each fault strikes again and again, on an
installation of its own. Counted from the carrier's ledger and the pods' own records
([benchmarks.md](../benchmarks.md)).

Exotel can neither hold a call nor ask again, so its calls are counted apart: *unexcused* are those without an agent
although no engine was away and no pod was lost when the person answered.

{table}
"""


def keep(verdicts: Sequence[Verdict], total: Report) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    date, commit = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), _commit()
    content = {
        "commit": commit,
        "date": date,
        "total": asdict(total),
        "runs": [verdict.line() for verdict in verdicts],
    }
    (FOLDER / "agents.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    told = "Every goal was met." if total.met else "Not every goal was met."
    page = PAGE.format(date=date, commit=commit, verdict=told, table=_table(verdicts))
    (FOLDER / "agents.md").write_text(page, encoding="utf-8")


def _table(verdicts: Sequence[Verdict]) -> str:
    head = ["fault", "pods", *COLUMNS.values()]
    rows = [
        [one.fault.replace("_", " "), str(one.pods), *(_shown(getattr(one, name)) for name in COLUMNS)]
        for one in verdicts
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _commit() -> str:
    """With a mark where files differ from it."""
    named = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return named.stdout.strip() or "unknown"

"""The test's side of crash points: which there are, and how to run a program into one."""

import ast
import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trunkline
from trunkline.crashpoint import CRASH_AT, EXIT_STATUS, TESTING

# Every name that product code passes to `crash_point`. A test compares both, so that a sweep misses none.
CRASH_POINTS: frozenset[str] = frozenset(
    {
        "dialer.after_match",
        "dialer.after_intent",
        "dialer.before_send",
        "dialer.after_send",
        "results.before_write",
        "inbox.after_commit",
        "mailbox.after_claim",
        "mailbox.before_write",
        "mailbox.before_commit",
        "mailbox.after_commit",
        "jobs.after_claim",
        "jobs.after_run",
        "jobs.before_finish",
        "jobs.reaper_locked",
        "reminders.after_claim",
        "reminders.after_occurrence",
        "reminders.after_lead",
        "reminders.before_commit",
        "reminders.after_commit",
        "router.after_allocate",
        "router.after_release",
        "router.after_drain",
        "router.after_heartbeat",
        "router.before_note",
        "router.after_note",
        "router.after_register",
        "router.after_beats",
        "router.after_reset",
        "router.after_lead",
        "router.after_restore",
        "router.after_tiers",
        "router.after_merchants",
        "router.after_sync",
        "router.after_remove",
        "router.after_balance",
        "router.after_recover",
        "router.after_abandon",
    }
)

SOURCE = Path(trunkline.__file__).parent


@dataclass(frozen=True)
class Crashed:
    """What a program wrote before it reached its crash point."""

    stdout: str
    stderr: str


def crash_environment(
    point: str, nth: int = 1, *, known: frozenset[str] = CRASH_POINTS, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a process that ends at the `nth` passing of `point`."""
    assert point in known, f"no crash point is called {point}"
    assert nth >= 1, "passings are counted from 1"
    return {**(os.environ if base is None else base), TESTING: "1", CRASH_AT: f"{point}:{nth}"}


async def run_until_crash(
    command: Sequence[str | Path],
    point: str,
    nth: int = 1,
    *,
    known: frozenset[str] = CRASH_POINTS,
    base: Mapping[str, str] | None = None,
    timeout_s: float = 60,
) -> Crashed:
    """Run `command` to the crash point. It is an error if it ends in any other way, or not at all."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=crash_environment(point, nth, known=known, base=base),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        stdout, stderr = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise AssertionError(f"{point} was not passed {nth} times within {timeout_s} s") from None
    assert process.returncode == EXIT_STATUS, (
        f"ended with {process.returncode}, not at passing {nth} of {point}: {stderr.decode(errors='replace')}"
    )
    return Crashed(stdout.decode(), stderr.decode())


def used_crash_points(source: Path = SOURCE) -> set[str]:
    """The names in the code. Each must be written out: a computed one could not be found."""
    return {name for path in source.rglob("*.py") for name in _names_in(path)}


def _names_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Call) and _called(node) == "crash_point":
            match node.args:
                case [ast.Constant(value=str(name))]:
                    yield name
                case _:
                    raise AssertionError(f"{path}:{node.lineno}: crash_point takes one name, written out")


def _called(call: ast.Call) -> str | None:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None

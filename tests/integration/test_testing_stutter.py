"""Processes that stand still go on again, and the command ends as it would have."""

import sys

from tests.support.faults.stutter import Pattern, run

# A child is there until it was stopped and went on: it sees that by the signal.
PROGRAM = """
import signal, subprocess, sys
child = [sys.executable, "-c", (
    "import signal\\n"
    "signal.sigwait({signal.SIGCONT})\\n"
)]
sys.exit(subprocess.Popen(child, preexec_fn=lambda: signal.pthread_sigmask(
    signal.SIG_BLOCK, {signal.SIGCONT})).wait() or 7)
"""


def test_stutter_stops_and_continues_children_and_returns_the_commands_exit_code() -> None:
    code, count = run([sys.executable, "-c", PROGRAM], pattern=Pattern(still_s=(0.0, 0.01), between_s=0.01))
    assert code == 7
    assert count >= 1

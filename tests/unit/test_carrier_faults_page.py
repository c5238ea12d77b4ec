"""Every fault that others have had names the tests that would notice it here, and those tests are there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "proof" / "carrier-faults.md"
FAULTS = frozenset(
    {
        "dograh#745", "dograh#737", "jambonz/sbc-outbound#226", "CALLE#447", "clairvoyance#670", "clairvoyance#938",
        "CALLE#117", "whispey#494", "clairvoyance#445", "clairvoyance#226", "AVA-AI-Voice-Agent-for-Asterisk#539",
        "CALLE#97", "CALLE#283", "vellum-assistant#6044", "dograh#510", "dograh#374", "yap#1589", "livekit#4374",
        "livekit/agents#3202", "livekit/agents#4268", "pipecat#764", "pipecat#3378", "pipecat#3293",
        "clairvoyance#842",
    }
)  # fmt: skip


def rows() -> dict[str, list[str]]:
    lines = [line.split("|") for line in PAGE.read_text(encoding="utf-8").splitlines() if "::" in line]
    return {cells[1].strip(): re.findall(r"`([^`]+::[^`]+)`", cells[3]) for cells in lines}


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions)


def test_no_fault_is_left_out() -> None:
    assert rows().keys() == FAULTS


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_names_tests_that_are_there(fault: str) -> None:
    named = rows()[fault]
    assert named
    for test in named:
        path, _, name = test.partition("::")
        assert name in names_in(path), test

"""Chance by seed: who answers and what goes wrong, and the numbers for which it is known."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from trunkline.telephony.simulator.behaviour import Behaviour, fate
from trunkline.telephony.simulator.dice import roll
from trunkline.telephony.simulator.faults import (
    UNDIALLED,
    Faults,
    ReplyFault,
    WebhookFault,
    reply_fault,
    webhook_fault,
)
from trunkline.telephony.simulator.magic import MAGIC, REFUSALS, magic

MANY = 4000
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "simulator.md"


def changed(**changes: Any) -> Faults:
    return replace(Faults(), **changes)


def test_a_roll_is_uniform_and_depends_on_its_seed_and_key() -> None:
    rolls = [roll(1, "x", n) for n in range(MANY)]
    assert all(0 <= one < 1 for one in rolls)
    assert 0.48 < sum(rolls) / MANY < 0.52
    assert rolls == [roll(1, "x", n) for n in range(MANY)]
    assert rolls != [roll(2, "x", n) for n in range(MANY)]


def test_people_react_in_the_shares_given() -> None:
    behaviour = Behaviour(answer=6, busy=2, no_answer=1, failed=1)
    reactions = [fate(behaviour, 1, "+1", n).reaction for n in range(MANY)]
    shares = {kind: reactions.count(kind) / MANY for kind in ("answer", "busy", "no_answer", "failed")}
    assert shares == pytest.approx({"answer": 0.6, "busy": 0.2, "no_answer": 0.1, "failed": 0.1}, abs=0.03)


def test_times_stay_in_their_ranges() -> None:
    behaviour = Behaviour(ring_s=(2, 3), talk_s=(5, 5))
    for n in range(200):
        one = fate(behaviour, 1, "+1", n)
        assert 2 <= one.ring_s <= 3
        assert one.talk_s == 5


@pytest.mark.parametrize("wrong", [{"answer": -1}, {"machine": 2}, {"ring_s": (3, 2)}, {"talk_s": (-1, 2)}])
def test_an_invalid_behaviour_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"shares|ranges"):
        replace(Behaviour(), **wrong)


@pytest.mark.parametrize("kind", ReplyFault)
def test_each_reply_fault_comes_as_often_as_asked(kind: ReplyFault) -> None:
    faults = changed(**{kind.value: 0.25})
    drawn = [reply_fault(faults, 1, "+1", n) for n in range(MANY)]
    assert set(drawn) == {kind, None}
    assert drawn.count(kind) / MANY == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("kind", WebhookFault)
def test_each_webhook_fault_comes_as_often_as_asked(kind: WebhookFault) -> None:
    faults = changed(**{kind.value: 0.25})
    drawn = [webhook_fault(faults, 1, "+1", n, 0) for n in range(MANY)]
    assert set(drawn) == {kind, None}
    assert drawn.count(kind) / MANY == pytest.approx(0.25, abs=0.03)


def test_without_faults_no_reply_fails() -> None:
    assert all(reply_fault(Faults(), seed, "+1", 0) is None for seed in range(500))


@pytest.mark.parametrize(
    "wrong", [{"throttled": 1.5}, {"throttled": -0.1}, {"slow_reply": 0.6, "throttled": 0.6}]
)
def test_chances_above_one_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        changed(**wrong)


def test_every_fault_has_a_magic_number() -> None:
    assert {one.reply for one in MAGIC.values()} == {None, *ReplyFault}
    assert {one.webhook for one in MAGIC.values()} == {None, *WebhookFault}
    assert {one.fate.reaction for one in MAGIC.values()} == {"answer", "busy", "no_answer", "failed"}


def test_only_faults_without_a_dial_are_named_undialled() -> None:
    assert {kind for kind in ReplyFault if "undialled" in kind.value} == UNDIALLED - {ReplyFault.THROTTLED}


def test_an_ordinary_number_is_not_magic() -> None:
    assert magic("+12025550100") is None
    assert magic("+15005559901") is None
    assert magic("+150055510010") is None


def test_the_page_about_the_simulator_names_every_magic_number_and_fault() -> None:
    text = PAGE.read_text()
    documented = set(re.findall(r"^\| (\d\d) \|", text, re.MULTILINE))
    assert documented == set(MAGIC)
    assert all(number in text for number in REFUSALS)
    assert [field.name for field in fields(Faults) if f"`{field.name}`" not in text] == []

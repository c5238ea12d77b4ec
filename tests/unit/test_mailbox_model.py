"""Every interleaving of appends, claims, completions, crashes and reclaims of one mailbox."""

import pytest

from tests.support.mailbox.model import Explored, Flaw, Model, complaints, explore

SOUND = [
    Model(names=("x", "y", "x"), workers=2, crashes=2),
    Model(names=("x", "y"), workers=3, crashes=1),
    Model(names=("x", "x"), workers=2, crashes=3),
]


@pytest.mark.parametrize(
    "model", SOUND, ids=lambda model: f"{'-'.join(model.names)}, {model.workers} workers"
)
def test_no_interleaving_loses_an_event_or_lets_it_take_effect_twice(model: Model) -> None:
    assert list(complaints(model, explore(model))) == []


@pytest.mark.parametrize("flaw", [flaw for flaw in Flaw if flaw is not Flaw.NONE])
def test_the_exploration_finds_a_broken_interleaving_for_every_flaw(flaw: Flaw) -> None:
    model = Model(flaw=flaw)
    assert next(complaints(model, explore(model)), None) is not None


def test_the_exploration_takes_every_action_of_the_model() -> None:
    model = SOUND[0]
    explored: Explored = explore(model)
    actions = {step.action for steps in explored.edges.values() for step, _ in steps}
    assert actions == {
        "append begins",
        "append commits",
        "append crashes",
        "worker claims",
        "worker reads",
        "worker locks",
        "worker commits",
        "worker fails",
        "worker renews",
        "worker crashes",
        "lease expires",
    }
    assert any(model.is_end(state) for state in explored.edges)

"""The judge of the benchmark of refusals sees what it is there to see."""

from dataclasses import replace

from bench.refusals.__main__ import FAULTS
from bench.refusals.judge import Asked, Evidence, Goal, judge

RESTS = Goal(per_minute_max=3)
BEGAN_S, HEALED_S = 1000.0, 1180.0


def asked(*moments_s: float, took_s: float = 0.1) -> list[Asked]:
    return [Asked(BEGAN_S + at_s, f"+1212{n}", BEGAN_S + at_s + took_s) for n, at_s in enumerate(moments_s)]


WELL = Evidence(
    BEGAN_S,
    HEALED_S,
    leads=900,
    asked=asked(1.0, 1.1, 1.2, 21.0, 61.0, 141.0, 190.0),
    healthy_late_s=[0.01, 0.2],
    healthy_leads=2,
    dialled=900,
    ended=0,
    waiting=0,
    last_dialled_s=HEALED_S + 20,
)


def test_a_burst_before_the_first_refusal_and_single_probes_meet_the_goal() -> None:
    verdict = judge("credentials", RESTS, WELL)
    assert verdict.met
    assert (verdict.requests_at_first, verdict.requests_while_refused) == (3, 3)
    assert verdict.requests_per_minute_max == 2


def test_the_judge_names_every_missed_goal() -> None:
    worse = {
        "5 requests in a minute": replace(WELL, asked=asked(0.0, 10, 20, 30, 40, 50)),
        "2 probes at a time": replace(WELL, asked=asked(0.0, 20.0, 20.5, took_s=5)),
        "no probe at all": replace(WELL, asked=asked(0.0)),
        "1 leads ended without a call": replace(WELL, ended=1),
        "2 leads were never dialled": replace(WELL, waiting=2),
        "the healthy account was 1.5 s late": replace(WELL, healthy_late_s=[0.1, 1.5]),
        "1 leads of the healthy account were not dialled": replace(WELL, healthy_late_s=[0.1]),
    }
    for missed, seen in worse.items():
        assert judge("credentials", RESTS, seen).missed == [missed]


def test_probing_the_same_person_twice_in_a_row_misses_the_goal() -> None:
    twice = [Asked(BEGAN_S + at_s, "+1", BEGAN_S + at_s) for at_s in (0.0, 20.0, 60.0)]
    assert judge("credentials", RESTS, replace(WELL, asked=twice)).missed == [
        "the same person twice in a row"
    ]


def test_delayed_leads_of_other_destinations_miss_the_goal() -> None:
    goal = Goal(per_minute_max=None, ended_max=1, others_within_s=25.0)
    seen = replace(WELL, ended=1, last_dialled_s=BEGAN_S + 24)
    assert judge("unknown_code", goal, seen).met
    assert judge("unknown_code", goal, replace(seen, last_dialled_s=BEGAN_S + 26)).missed == ["others waited"]


def test_a_paused_other_number_of_the_account_misses_the_goal() -> None:
    goal = Goal(per_minute_max=3, other_number_pause_max_s=10.0)
    goes_on = asked(*(n / 4 for n in range(180 * 4)))
    verdict = judge("caller_id", goal, replace(WELL, through_other_number=goes_on))
    assert (verdict.missed, verdict.other_number_pause_max_s) == ([], 0.2)
    rested = [one for one in goes_on if not 40 < one.at_s - BEGAN_S < 60.5]
    seen = replace(WELL, through_other_number=rested)
    assert judge("caller_id", goal, seen).missed == ["the other number stood still for 20.5 s"]
    assert judge("caller_id", goal, WELL).missed == ["the other number stood still for 177.0 s"]
    ended_early = [one for one in goes_on if one.at_s < HEALED_S - 30]
    assert not judge("caller_id", goal, replace(WELL, through_other_number=ended_early)).met


def test_the_benchmarks_faults_have_their_goals() -> None:
    assert FAULTS["caller_id"].has_other_number
    assert FAULTS["caller_id"].goal.other_number_pause_max_s is not None
    assert FAULTS["unknown_code"].goal.others_within_s == 25.0

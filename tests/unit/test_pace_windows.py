"""A call leaves within its window, whatever its paces and its sender take."""

from datetime import UTC, datetime, timedelta

from trunkline.dispatch.cooldowns import Cooling
from trunkline.dispatch.gates import AGENTS_ELSEWHERE, Case, CountedLimits, case_of
from trunkline.dispatch.overdialling import Overdialled
from trunkline.leads.calling_policy import CallingPolicy, resolve
from trunkline.leads.windows import TimeSpan, Window
from trunkline.model import Grant, PersonCalls, Refusal, RefusalReason, new_id
from trunkline.store.dispatch import LimitCounts, LockedLead, LockedNumber, NewAttempt
from trunkline.value import replace

CLOSES = datetime(2025, 6, 3, 18, tzinfo=UTC)
BEFORE = CLOSES - timedelta(milliseconds=200)
POLICY = resolve(
    merchant=CallingPolicy(windows=(Window(spans=(TimeSpan(start="06:00", end="18:00"),), timezone="UTC"),))
)
NUMBER = LockedNumber(new_id(), "+14155550100", "twilio", "default", 50, None, "active", "p", may_count=False)


def case(no: int) -> Case:
    lead = LockedLead(
        id=new_id(), phone=f"+1212555000{no}", timezone=None, merchant_id="m", reseller_id="r", campaign_id=None,
        attempt_count=0, max_attempts=3, due_at=BEFORE, closes_at=None, pool_id="p", overflow_pool_id=None,
        merchant_max_concurrent=None, carrier="twilio", account="default", now=BEFORE, halted=None, listed_by=None,
        passed_checks=None, are_agents_elsewhere=True,
    )  # fmt: skip
    return replace(case_of(Grant(new_id(), lead.id, 1, NUMBER.id, no, 0), lead, POLICY), number=NUMBER)


class NobodyWasCalled(dict):  # type: ignore[type-arg]  # for every question the same answer
    def __missing__(self, question: object) -> PersonCalls:
        return PersonCalls(0, None, all_own=True)


def test_a_policys_window_is_checked_at_the_paced_start() -> None:
    counts = LimitCounts(BEFORE, persons=NobodyWasCalled(), taken={("twilio", "default"): BEFORE})
    tally = CountedLimits(
        counts, lambda carrier, account: 2.0, Cooling(counts), AGENTS_ELSEWHERE, Overdialled()
    )
    in_time, too_late = tally.admit(case(1)), tally.admit(case(2))
    assert isinstance(in_time, NewAttempt)
    assert (in_time.intent.send_at, in_time.intent.closes_at) == (BEFORE, CLOSES)
    assert isinstance(too_late, Refusal)
    assert (too_late.reason, too_late.due_at) == (RefusalReason.WINDOW, CLOSES + timedelta(hours=12))

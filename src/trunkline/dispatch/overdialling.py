"""Overdialling: which calls may be dialled without a reserved agent, and what reserved ones leave to those that ring.

A campaign whose policy has an `abandon_max` above 0 is dialled without reservations while the expected share of
abandoned calls stays under it. An agent is reserved for its calls only once too many were abandoned (the brake), and
for people whose earlier call was abandoned; never to keep within the bound: the ringing calls count on every slot.

Calls ring for a group of tiers: a merchant's own tier, or the common ones together. The ringing calls and the free
slots are counted in the same group, under the group's lock. Dials of all other campaigns, with a reservation, take no
lock, and leave the slots free that the ringing calls need, as they leave the inbound reserve.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from trunkline.dispatch.gates import Case
from trunkline.leads import abandonment
from trunkline.leads.abandonment import NOTHING_RINGS, Ringing
from trunkline.leads.calling_policy import Effective
from trunkline.model import Grant, Slot
from trunkline.settings.tiers import COMMON, chain
from trunkline.store import abandonment as counts
from trunkline.store import allocations, dispatch
from trunkline.store.abandonment import NO_CAMPAIGN, AbandonmentCounts
from trunkline.store.agents import SlotRule
from trunkline.store.database import Connection
from trunkline.store.dispatch import Overdial
from trunkline.value import Value

COMMON_GROUP = "common"
# How long answer rates and measured shares are cached: one call in hundreds hardly changes them.
FRESH_S = 1.0
# How long "nothing rings without a reservation" is cached, for dials with one: they take no lock either.
RINGS_FRESH_S = 0.25
# For this long a dial that found no reservable slot goes before further calls without a reservation.
WAITER_PRIORITY_S = 2.0
# How often an end of overdialling is reported while it lasts.
REPORT_EVERY_S = 60.0
CAMPAIGNS_MAX = 10_000

# merchant, campaign
Campaign = tuple[str, UUID | None]


class Terms(Value, frozen=True):
    """How calls of a campaign to a person are overdialled. `has_ended`: the brake ended it, so agents are reserved."""

    tiers: tuple[str, ...]
    answer_rate: float
    abandon_max: float
    has_ended: bool

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group_of(tier) for tier in self.tiers))


@dataclass(slots=True)
class Headroom:
    """The counts of a group: the slots that are free for dials, and the calls that ring for them without a reservation.
    `abandon_max` is the least that any of these was admitted under."""

    free: int
    ringing: Ringing = NOTHING_RINGS
    abandon_max: float = 1.0
    # A dial waited for a slot here before this batch; and what this batch did.
    has_waiter: bool = False
    was_reserved: bool = False
    was_refused: bool = False


@dataclass(slots=True)
class Overdialled:
    """The counts for a batch: by attempt, the terms of those that may be overdialled, and the slots that were proposed
    or picked; by group, its room; and the attempts to people whose earlier call was abandoned."""

    terms: Mapping[UUID, Terms] = field(default_factory=dict)
    slots: Mapping[UUID, Slot] = field(default_factory=dict)
    headrooms: dict[str, Headroom] = field(default_factory=dict)
    reserved_only: Collection[UUID] = ()

    def agent(self, attempt_id: UUID) -> Slot | Overdial | str:
        """The slot that is reserved for a call, or the terms on which it rings without: in the first of its groups in
        which the bound holds. A text: why it has neither."""
        if self.terms and not self.is_reserved(attempt_id):
            terms = self.terms[attempt_id]
            for group in terms.groups:
                headroom = self.headrooms[group]
                free = headroom.free - 1 if headroom.has_waiter else headroom.free
                abandon_max = min(terms.abandon_max, headroom.abandon_max)
                if abandonment.may_dial(headroom.ringing, terms.answer_rate, free, abandon_max):
                    return Overdial(group, terms.answer_rate, terms.abandon_max)
            return "abandon_max"
        slot = self.slots.get(attempt_id)
        if slot is None:
            return "no_agent_free"
        # A group that was not counted has nothing ringing.
        room = self.headrooms.get(group_of_slot(slot)) if self.headrooms else None
        if room and abandonment.expected_share(room.ringing, room.free - 1) > room.abandon_max:
            room.was_refused = room.has_waiter = True
            return "agents_for_ringing_calls"
        return slot

    def is_reserved(self, attempt_id: UUID) -> bool:
        terms = self.terms.get(attempt_id)
        return terms is None or terms.has_ended or attempt_id in self.reserved_only

    def count(self, agent: Slot | Overdial | None) -> None:
        match agent:
            case Overdial(group=group, answer_rate=rate, abandon_max=most):
                headroom = self.headrooms[group]
                headroom.ringing = headroom.ringing.plus(rate)
                headroom.abandon_max = min(headroom.abandon_max, most)
            case Slot() if room := self.headrooms.get(group_of_slot(agent)):
                room.free -= 1
                room.was_reserved, room.has_waiter = True, False


class _CampaignStats(Value, frozen=True):
    tiers: tuple[str, ...]
    answer_rate: float
    # Of the campaign, and of its merchant.
    measured: tuple[AbandonmentCounts, AbandonmentCounts]
    read_at_s: float
    # By the brake, for a person whose country allows as much as the policy.
    has_ended: bool


class Overdialling:
    def __init__(self, rule: SlotRule | None = None, fresh_s: float = FRESH_S):
        self._rule = rule or SlotRule()
        self._fresh_s = fresh_s
        self._stats: dict[Campaign, _CampaignStats] = {}
        self._ringing: frozenset[str] = frozenset()
        self._ringing_until_s = float("-inf")
        # Groups in which a dial waits for a slot, and until when that counts.
        self._waiters_until_s: dict[str, float] = {}
        # Campaigns whose overdialling the brake has ended, each once a minute while it is dialled for: to be reported.
        self.ended: list[Campaign] = []
        self._reported_at_s: dict[Campaign, float] = {}

    def reserved(self, grants: Sequence[Grant]) -> Sequence[Grant]:
        """The grants to propose a slot for. Most calls of an overdialled campaign are dialled without; if one needs a
        slot after all, the intent picks it."""
        if not self._stats:
            return grants
        stats = [self._stats.get((grant.merchant_id, grant.campaign_id)) for grant in grants]
        return [grant for grant, each in zip(grants, stats, strict=True) if each is None or each.has_ended]

    async def terms(self, tx: Connection, cases: Iterable[Case]) -> dict[UUID, Terms]:
        """By attempt, of those cases that may be overdialled. Read before the locks."""
        candidates = [(case, case.policy.abandon_max_of(case.lead.phone)) for case in cases]
        candidates = [(case, most) for case, most in candidates if most]
        if candidates:
            await self._refresh(tx, [case for case, _ in candidates])
        terms = {}
        for case, most in candidates:
            stats = self._stats[case.lead.merchant_id, case.lead.campaign_id]
            has_ended = any(is_over(case.policy, each, most) for each in stats.measured)
            terms[case.grant.attempt_id] = Terms(stats.tiers, stats.answer_rate, most, has_ended)
        return terms

    async def count(
        self,
        tx: Connection,
        all_terms: Mapping[UUID, Terms],
        cases: Sequence[Case],
        proposed: Mapping[UUID, Slot],
    ) -> Overdialled:
        """The ringing calls and the free slots, in a statement after the locks; of the groups of the proposed slots
        too, if anything rings there."""
        if not all_terms and not (proposed and await self._groups_ringing(tx)):
            return Overdialled(slots=proposed)
        persons = [case for case in cases if case.grant.attempt_id in all_terms]
        terms = {case.grant.attempt_id: all_terms[case.grant.attempt_id] for case in persons}
        groups = {group for each in terms.values() for group in each.groups}
        slots = [proposed[case.grant.attempt_id] for case in cases if case.grant.attempt_id in proposed]
        others = {group_of_slot(slot) for slot in slots} - groups
        if others:
            groups |= others & await self._groups_ringing(tx)
        overdialled = Overdialled(terms, proposed)
        if groups:
            await self._count_groups(tx, sorted(groups), persons, overdialled)
        unproposed = [each for each in terms if overdialled.is_reserved(each) and each not in proposed]
        if unproposed:
            overdialled.slots = {**proposed, **await self._pick(tx, terms, unproposed)}
        return overdialled

    async def _count_groups(
        self, tx: Connection, groups: Sequence[str], persons: Sequence[Case], overdialled: Overdialled
    ) -> None:
        callers = {group: {tier: self._rule.callers_of(tier) for tier in tiers_of(group)} for group in groups}
        groups_counted, abandoned = await dispatch.count_overdialled(
            tx, callers, self._rule.silence_s, [(case.lead.merchant_id, case.lead.phone) for case in persons]
        )
        overdialled.headrooms = {
            group: Headroom(
                each.free,
                Ringing(each.calls, each.answers_expected),
                each.abandon_max,
                self._waiters_until_s.get(group, float("-inf")) > time.monotonic(),
            )
            for group, each in groups_counted.items()
        }
        overdialled.reserved_only = {
            case.grant.attempt_id
            for case in persons
            if case.lead.no_agent_count > 0 or (case.lead.merchant_id, case.lead.phone) in abandoned
        }

    async def _pick(
        self, tx: Connection, terms: Mapping[UUID, Terms], without: Sequence[UUID]
    ) -> Mapping[UUID, Slot]:
        """Slots for calls of overdialled campaigns that need one after all: the need is known only from the counts, so
        none was proposed for them."""
        wants = [(attempt_id, terms[attempt_id].tiers) for attempt_id in without]
        tiers = dict.fromkeys(tier for _, each in wants for tier in each)
        callers = {tier: self._rule.callers_of(tier) for tier in tiers}
        free = await allocations.free_slots(tx, callers, len(wants), self._rule.silence_s)
        return allocations.assign(wants, free)

    def note(self, overdialled: Overdialled) -> None:
        """Remember the groups in which a dial waits for a slot: else calls without a reservation would always be
        first."""
        until_s = time.monotonic() + WAITER_PRIORITY_S
        for group, headroom in overdialled.headrooms.items():
            if headroom.was_refused:
                self._waiters_until_s[group] = until_s
            elif headroom.was_reserved:
                self._waiters_until_s.pop(group, None)

    async def _groups_ringing(self, tx: Connection) -> frozenset[str]:
        now_s = time.monotonic()
        if now_s >= self._ringing_until_s:
            self._ringing = await dispatch.groups_ringing(tx)
            self._ringing_until_s = now_s + min(RINGS_FRESH_S, self._fresh_s)
        return self._ringing

    async def _refresh(self, tx: Connection, cases: Iterable[Case]) -> None:
        """What is known of the campaigns of these cases is at most `fresh_s` old then."""
        now_s, stale = time.monotonic(), {}
        for case in cases:
            campaign = (case.lead.merchant_id, case.lead.campaign_id)
            stats = self._stats.get(campaign)
            if stats is None or now_s - stats.read_at_s >= self._fresh_s:
                stale[campaign] = case
        if not stale:
            return
        if len(self._stats) > CAMPAIGNS_MAX:
            self._stats.clear()
            self._reported_at_s.clear()
        configs = await allocations.merchant_tiers(tx, sorted({merchant_id for merchant_id, _ in stale}))
        recent = await counts.recent(tx, stale)
        for campaign, case in stale.items():
            merchant_id, campaign_id = campaign
            policy, newest = case.policy, abandonment.recent(recent.get(campaign, ()), case.lead.now)
            window_h = policy.abandon_window_h or 24
            measured = (
                await counts.measured(tx, merchant_id, campaign_id or NO_CAMPAIGN, window_h=window_h),
                await counts.measured(tx, merchant_id, window_h=window_h),
            )
            self._stats[campaign] = stats = _CampaignStats(
                chain(merchant_id, configs.get(merchant_id, "")),
                abandonment.answer_rate(newest.answered, newest.ended),
                measured,
                now_s,
                any(is_over(policy, each, policy.abandon_max) for each in measured),
            )
            reported_at_s = self._reported_at_s.get(campaign, float("-inf"))
            if stats.has_ended and now_s - reported_at_s >= REPORT_EVERY_S:
                self._reported_at_s[campaign] = now_s
                self.ended.append(campaign)


def is_over(policy: Effective, measured: AbandonmentCounts, abandon_max: float) -> bool:
    """Whether so many calls were abandoned, over 30 days or the policy's window, that agents are reserved again."""
    spans = [measured.last_30d, *([measured.window] if policy.abandon_window_h else [])]
    return any(abandonment.is_braked(span, abandon_max) for span in spans)


def group_of(tier: str) -> str:
    return COMMON_GROUP if tier in COMMON else tier


def group_of_slot(slot: Slot) -> str:
    return group_of(slot.source_pool.removeprefix("pool:"))


def tiers_of(group: str) -> tuple[str, ...]:
    return COMMON if group == COMMON_GROUP else (group,)

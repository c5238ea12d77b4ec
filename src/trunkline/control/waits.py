"""Derives why the leads of a flow wait. Pure; the first cause counts."""

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum

from trunkline.store.agents import AgentCapacity
from trunkline.store.waiting import WaitingFlow

# reseller, merchant: whether this platform calls its leads.
Includes = Callable[[str, str], bool]


class Cause(StrEnum):
    """`NONE`: no known cause keeps them from being called."""

    STOPPED = "stopped"
    ROLLOUT = "event_dispatch"
    NO_AGENT_BRAKE = "no_agent_brake"
    NO_NUMBER = "no_number"
    NUMBERS_STOPPED = "numbers_stopped"
    COOLDOWN = "cooldown"
    CHANNELS = "channels"
    NO_AGENTS = "no_agents"
    AGENTS_BUSY = "agents_busy"
    REFUSED = "refused"
    NONE = "none"


def everybody(reseller_id: str, merchant_id: str) -> bool:
    return True


def cause(flow: WaitingFlow, includes: Includes = everybody, agents: AgentCapacity | None = None) -> Cause:
    """`agents`: those that the merchant's calls reach. None: they are external, or were not read."""
    if flow.is_stopped:
        return Cause.STOPPED
    if not includes(flow.reseller_id, flow.merchant_id):
        return Cause.ROLLOUT
    if flow.is_braked:
        return Cause.NO_AGENT_BRAKE
    if not flow.has_numbers:
        return Cause.NO_NUMBER
    if not flow.has_usable_numbers:
        return Cause.NUMBERS_STOPPED
    if not flow.is_taken_by_carrier:
        return Cause.COOLDOWN
    if not flow.has_free_channel:
        return Cause.CHANNELS
    if flow.needs_agents and agents is not None and not agents.is_free:
        return Cause.AGENTS_BUSY if agents.able else Cause.NO_AGENTS
    return Cause.REFUSED if flow.refused_for else Cause.NONE


def until(flow: WaitingFlow, why: Cause) -> datetime | None:
    """When the cause ends; None if unknown."""
    match why:
        case Cause.STOPPED:
            return flow.stopped_until
        case Cause.NO_AGENT_BRAKE:
            return flow.braked_until
        case Cause.COOLDOWN:
            return flow.cooldown_until
        case Cause.REFUSED:
            return flow.refused_until
    return None


def leads_by_cause(causes: Mapping[WaitingFlow, Cause]) -> dict[Cause, float]:
    leads = dict.fromkeys(Cause, 0.0)
    for flow, why in causes.items():
        leads[why] += flow.leads
    return leads


def leads_by(
    causes: Mapping[WaitingFlow, Cause], why: Cause, subject: Callable[[WaitingFlow], str]
) -> dict[str, float]:
    """How many leads of each subject wait for this cause."""
    leads: dict[str, float] = {}
    for flow, each in causes.items():
        if each is why:
            leads[subject(flow)] = leads.get(subject(flow), 0.0) + flow.leads
    return leads

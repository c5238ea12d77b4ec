"""Leads, and what happened to them."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from trunkline.schema.fields import CREATED_AT, ITS_ID, UPDATED_AT, Indexed, about
from trunkline.states import AttemptState, LeadStatus


@dataclass(frozen=True, slots=True)
class Lead:
    """One person to call for one purpose."""

    id: UUID = field(metadata=ITS_ID)
    request_id: str = field(metadata=about("The id of the request that created it, unique per merchant."))
    reseller_id: str = field(metadata=about("The reseller of its merchant."))
    merchant_id: str = field(metadata=about("Its merchant."))
    phone: str = field(repr=False, metadata=about("As E.164."))
    timezone: str | None = field(metadata=about("The time zone of the callee, if it was given."))
    payload: dict[str, Any] = field(repr=False, metadata=about("What the agent should know."))
    campaign_id: UUID | None = field(metadata=about("Its campaign, if it has one."))
    pool: str = field(metadata=about("The number pool that it is called from."))
    priority: int = field(metadata=about("1 is called first, 99 last, within a merchant."))
    status: str = field(
        metadata=about(
            "BACKLOG: it waits. PROCESSING: it is being called.", json_schema_extra={"enum": [*LeadStatus]}
        )
    )
    outcome: str | None = field(metadata=about("Set when the status is FINISHED."))
    outcome_reason: str | None = field(metadata=about("More about the outcome."))
    scheduled_at: datetime = field(metadata=about("The scheduled time."))
    due_at: datetime = field(metadata=about("When the next call is due."))
    attempt_count: int = field(
        metadata=about("Attempts that count: not those that failed because of the platform.")
    )
    max_attempts: int = field(metadata=about("How many attempts count at most."))
    no_agent_count: int = field(
        metadata=about("How often it was answered without an agent, and called again because of that.")
    )
    reporting_webhook_url: str | None = field(metadata=about("Where its result is reported."))
    version: int = field(metadata=about("Rises with every change."))
    created_at: datetime = field(metadata=CREATED_AT)
    updated_at: datetime = field(metadata=UPDATED_AT)
    finished_at: datetime | None = field(metadata=about("When it ended. null: it has not."))
    cancel_requested_at: datetime | None = field(
        metadata=about("The lead was aborted while it was being called: it ends with this call.")
    )
    cancel_reason: str | None = field(metadata=about("Why it was aborted."))
    reopen_count: int = field(metadata=about("How often the lead was reopened.", absent=0))
    expires_at: datetime | None = field(
        metadata=about(
            "The time from which the lead is not called any more. null: no such time.", absent=None
        )
    )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One dial of a lead."""

    id: UUID = field(metadata=ITS_ID)
    attempt_no: int = field(metadata=about("Its number among the attempts that count."))
    state: str = field(
        metadata=about("How far the call has come.", json_schema_extra={"enum": [*AttemptState]})
    )
    carrier: str = field(metadata=about("The carrier of the call."))
    carrier_call_id: str | None = field(metadata=about("The carrier's id of the call."))
    from_phone: str = field(repr=False, metadata=about("The number that it was dialled from."))
    intent_at: datetime = field(metadata=about("When it was committed, before it was sent."))
    accepted_at: datetime | None = field(metadata=about("When the carrier accepted it."))
    ringing_at: datetime | None = field(metadata=about("When it rang."))
    answered_at: datetime | None = field(metadata=about("When it was answered."))
    ended_at: datetime | None = field(metadata=about("When it ended. null: it is live."))
    end_reason: str | None = field(metadata=about("Why it ended."))
    duration_s: int | None = field(metadata=about("How long it lasted, in seconds."))
    due_at: datetime | None = field(metadata=about("When its lead was due.", absent=None))
    ready_at: datetime | None = field(
        metadata=about(
            "Since when everything that the call needs was available: the lead due, its window open, no stop, a free "
            "channel and agent, its turn in every pace. null: an attempt of an older version.",
            absent=None,
        )
    )
    sent_at: datetime | None = field(
        metadata=about("When the request was sent to the carrier; null: it was not sent.", absent=None)
    )
    waited_s: float | None = field(metadata=about("From `due_at` to `ready_at`.", absent=None))
    late_s: float | None = field(metadata=about("The lateness: from `ready_at` to `sent_at`.", absent=None))
    agent: str | None = field(
        metadata=about(
            "Who took the call, once it has ended. `joined`: an agent of the platform. `external`: an agent that the "
            "platform cannot see. `none`: no agent. `unknown`: there is no evidence; it counts as answered. null: the "
            "call was not answered, or is live.",
            absent=None,
            json_schema_extra={"enum": ["joined", "external", "none", "unknown", None]},
        )
    )
    cost_micros: int | None = field(
        metadata=about(
            "The cost by the price in its merchant's policy, in millionths of that currency. null: no price is set, or "
            "the call is live.",
            absent=None,
        )
    )
    carrier_cost_micros: int | None = field(
        metadata=about(
            "The cost that the carrier reported, in millionths of `carrier_cost_currency`. null: the carrier has not "
            "reported one (Twilio does minutes after the end; Exotel does not).",
            absent=None,
        )
    )
    carrier_cost_currency: str | None = field(
        metadata=about("The currency of `carrier_cost_micros`.", absent=None)
    )
    report: dict[str, Any] | None = field(
        repr=False, metadata=about("The agent's report, if there is one.", absent=None)
    )
    recordings: list[str] = field(
        repr=False,
        metadata=about("The URLs of recordings at the carrier, as the carrier reported them.", absent=None),
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """A reason for which a lead was not called."""

    reason: str = field(metadata=about("The reason, as a word for programs."))
    subject: str | None = field(metadata=about("What the reason is about: a number, a rule."))
    times: int = field(metadata=about("How often the lead was refused for this reason."))
    first_at: datetime = field(metadata=about("When it was refused first."))
    last_at: datetime = field(metadata=about("When it was refused last."))
    until: datetime | None = field(metadata=about("Until when the reason holds, if that is known."))


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event of a lead."""

    at: datetime = field(metadata=about("When the platform acted, or received the event."))
    source: str = field(
        metadata=about(
            "The source: `lead`, `attempt`, `carrier`, `agent`, `audit`, `decision`, `job`, `webhook`."
        )
    )
    what: str = field(metadata=about("What happened."))
    attempt_id: UUID | None = field(metadata=about("The attempt that it belongs to."))
    actor: str | None = field(metadata=about("Who did it."))
    reason: str | None = field(metadata=about("Why."))
    details: dict[str, Any] = field(metadata=about("More about it."))
    clock: str = field(
        metadata=about(
            "The clock of `at`: `ours`, or `carrier` where only the carrier's time is stored.", absent="ours"
        )
    )
    carrier_at: str | None = field(
        metadata=about("The time by the carrier's own clock, as the carrier reported it.", absent=None)
    )


@dataclass(frozen=True, slots=True)
class LeadWithAttempts(Lead):
    """A lead with its attempts, decisions and timeline."""

    attempts: list[Attempt] = field(metadata=about("Every dial, in order."))
    decisions: list[Decision] = field(metadata=about("Every reason for which it was not called."))
    timeline: list[TimelineEvent] = field(
        metadata=about(
            "The timeline: attempt by attempt, each step by step, and all other events in between by the platform's "
            "clock. 1000 entries at most."
        )
    )
    # In the client each is a dictionary: item_id, attempt_id, status, recording_ref, recording_url, transcript, data, …
    enrichments: list[Any] = field(
        repr=False, metadata=about("The enrichments of its calls, in order.", absent=None)
    )


@dataclass(frozen=True, slots=True)
class GateCheck(Indexed):
    """One gate that a lead has to pass, with its present state."""

    gate: str = field(metadata=about("Its name."))
    open: bool = field(metadata=about("Whether it lets the lead pass now."))
    detail: str | None = field(default=None, metadata=about("More about its state."))
    until: datetime | None = field(default=None, metadata=about("When the gate opens, if that is known."))
    set_by: str | None = field(
        default=None,
        metadata=about("What closed the gate: a person or key, a layer of the policy, a setting."),
    )


@dataclass(frozen=True, slots=True)
class Why(Indexed):
    """Why a lead is not called now."""

    lead_id: UUID = field(metadata=about("The lead."))
    status: str = field(metadata=about("Its status."))
    answer: str = field(
        metadata=about("A sentence for people: which gate refuses the lead, who set that, and when it ends.")
    )
    refused_by: str | None = field(
        metadata=about("The gate that refuses the lead; null: no gate does, or the lead does not wait.")
    )
    next_at: datetime | None = field(metadata=about("When the lead may be called, if that is known."))
    checks: list[GateCheck] = field(
        metadata=about("Every gate that the lead has to pass, with its present state.")
    )
    decisions: list[Decision] = field(metadata=about("Every refusal of the lead so far, by reason."))

"""A call, as its agent knows it: what the platform tells the agent, and the agent's report."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from uuid import UUID

from trunkline.schema.fields import Moment, TextRule, about, body

Reference = Annotated[str, TextRule(r"^[^\x00-\x1f\x7f]+$", 1, 2000)]
Disposition = Annotated[str, TextRule(r"^[^\x00-\x1f\x7f]+$", 1, 100)]


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """An agent's report on its call. References are stored as they are: the platform does not open them."""

    __pydantic_config__ = body(
        {
            "disposition": "interested",
            "opt_out": False,
            "callback_at": "2030-05-01T09:30:00+02:00",
            "transcript_ref": "s3://transcripts/4711.json",
            "recording_ref": "s3://recordings/4711.wav",
            "data": {"appointment": "2030-05-03"},
        }
    )

    disposition: Disposition | None = field(
        default=None,
        metadata=about(
            "The outcome, in the agent's own vocabulary. BUSY, VOICEMAIL and TRANSFERRED mean the platform's outcomes "
            "of the same name."
        ),
    )
    opt_out: bool = field(default=False, metadata=about("The person wants no more calls from this merchant."))
    callback_at: Moment | None = field(
        default=None, metadata=about("When the person wants to be called again.")
    )
    transcript_ref: Reference | None = field(default=None, metadata=about("Where the transcript is stored."))
    recording_ref: Reference | None = field(default=None, metadata=about("Where the recording is stored."))
    data: dict[str, Any] = field(
        default_factory=dict, repr=False, metadata=about("Other data that the agent collected.")
    )


@dataclass(frozen=True, slots=True)
class CallLead:
    """The lead of a dialled call."""

    id: UUID = field(metadata=about("Its id."))
    request_id: str | None = field(metadata=about("The id that its sender gave it."))
    payload: dict[str, Any] | None = field(repr=False, metadata=about("As its sender wrote it."))
    max_attempts: int | None = field(metadata=about("How often it is called at most."))
    timezone: str | None = field(metadata=about("The person's time zone."))


@dataclass(frozen=True, slots=True)
class AgentCall:
    """A call as its agent needs it."""

    call_sid: str = field(metadata=about("The carrier's id of the call.", examples=["CA123"]))
    attempt_id: UUID = field(metadata=about("The platform's id of the call."))
    attempt_no: int = field(metadata=about("Which of its lead's calls it is, from 1."))
    direction: Literal["outbound", "inbound"] = field(metadata=about("Who called."))
    carrier: str = field(metadata=about("The carrier.", examples=["twilio"]))
    to: str = field(repr=False, metadata=about("The number that was called.", examples=["+14155550123"]))
    from_: str = field(
        repr=False,
        metadata=about("The number that called.", serialization_alias="from", examples=["+14155550100"]),
    )
    reseller_id: str = field(metadata=about("The reseller of the call."))
    merchant_id: str = field(metadata=about("The merchant of the call."))
    campaign_id: UUID | None = field(metadata=about("The campaign; null: none."))
    template: Any = field(
        metadata=about("`template` of the lead's payload; null: none.", examples=["reminder"])
    )
    lead: CallLead | None = field(metadata=about("Null for an inbound call."))
    reported: bool = field(metadata=about("Whether a report of the call is stored."))
    resumed: bool = field(metadata=about("Whether an agent before this one had the call and was lost."))
    turn: int = field(metadata=about("How many agents the call had before this one."))
    state: dict[str, Any] | None = field(
        repr=False,
        metadata=about("What an agent before this one stored; null: nothing.", examples=[{"step": 2}]),
    )


@dataclass(frozen=True, slots=True)
class StoredForCall:
    """Something was stored with the call."""

    success: Literal[True] = field(metadata=about("True."))
    attempt_id: UUID = field(metadata=about("The platform's id of the call."))

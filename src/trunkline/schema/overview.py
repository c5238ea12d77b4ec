"""The present state of the platform, as far as a key may see it."""

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from uuid import UUID

from trunkline.schema.campaigns import Shares
from trunkline.schema.fields import Indexed, about

# A queue is counted up to here; this many of them are listed.
COUNT_MAX = 1_000
QUEUES_MAX = 20


@dataclass(frozen=True, slots=True)
class ChannelsInUse(Indexed):
    """The channels of some numbers."""

    capacity: int = field(metadata=about("How many there are."))
    held: int = field(metadata=about("How many live calls hold."))


@dataclass(frozen=True, slots=True)
class DialSlice(Indexed):
    """The dials of a slice of time, and their lateness."""

    at: datetime = field(metadata=about("When the slice begins."))
    dials: int = field(metadata=about("How many calls were dialled in it."))
    p50_s: float | None = field(metadata=about("The median lateness; null if all were inbound calls."))
    p99_s: float | None = field(metadata=about("The lateness that 99 % of them stay under."))


@dataclass(frozen=True, slots=True)
class WaitingQueue(Indexed):
    """Leads of one merchant, campaign and pool that wait."""

    merchant_id: str = field(metadata=about("Their merchant."))
    campaign_id: UUID | None = field(metadata=about("Their campaign, if they have one."))
    pool: str = field(metadata=about("The pool that they are dialled from."))
    first_due_at: datetime = field(metadata=about("When the first of them was due."))
    due: int = field(metadata=about(f"Due leads, counted up to {COUNT_MAX}."))
    waiting: int = field(metadata=about(f"All waiting leads, counted up to {COUNT_MAX}."))
    _: KW_ONLY
    waits_for: str | None = field(
        default=None,
        metadata=about(
            "Why due leads wait: `stopped`, `event_dispatch`, `no_agent_brake`, `no_number`, `numbers_stopped`, "
            "`cooldown`, `channels`, `no_agents`, `agents_busy`, the reason of an intent's refusal, or `turn`: they "
            "only wait for their turn. null: no lead is due."
        ),
    )
    waits_until: datetime | None = field(
        default=None,
        metadata=about(
            "When the wait ends, if that is known. `cooldown`: when the next probe is sent. `channels`: when the last "
            "of the leads that are due now is called, if calls end at the pace of the last ten minutes; null if more "
            "leads are due than are counted, or no call has ended."
        ),
    )
    is_until_estimated: bool = field(
        default=False,
        metadata=about("`waits_until` is an estimate, from the pace of the last ten minutes."),
    )


@dataclass(frozen=True, slots=True)
class PlatformProcess(Indexed):
    """A process of the platform."""

    id: str = field(metadata=about("Its name."))
    roles: list[str] = field(metadata=about("What it does."))
    started_at: datetime = field(metadata=about("When it started."))
    silent_s: float = field(metadata=about("Since its last report."))
    is_leader: bool = field(metadata=about("Whether it leads the others."))
    _: KW_ONLY
    is_alive: bool = field(default=True, metadata=about("Whether it has reported lately."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(Indexed):
    """Calls, channels, pace, lateness, queues and processes."""

    at: datetime = field(metadata=about("The moment of these figures."))
    calls: dict[str, int] = field(metadata=about("Calls that hold a channel now, by state."))
    channels: ChannelsInUse = field(metadata=about("Of your own numbers."))
    window_s: int = field(metadata=about("How far back the slices reach at most."))
    slice_s: int = field(metadata=about("How long each slice is."))
    since: datetime = field(
        metadata=about("How far back the slices reach: under heavy load not the whole window.")
    )
    slices: list[DialSlice] = field(
        metadata=about("Dials by time slice, oldest first. Slices without a dial are left out.")
    )
    endings: dict[str, int] = field(metadata=about("How the calls of these slices have ended so far."))
    queues: list[WaitingQueue] = field(metadata=about(f"Up to {QUEUES_MAX}, the longest waiting first."))
    abandonment: Shares = field(
        metadata=about("Abandoned calls, of all your calls: a person answered, and no agent took the call.")
    )
    leads_about: int | None = field(metadata=about("An estimate; null while there is none, and for tenants."))
    processes: list[PlatformProcess] = field(metadata=about("For keys of the platform; empty for others."))
    is_led: bool | None = field(metadata=about("Whether there is a leader; null for tenants."))

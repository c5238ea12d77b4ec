"""Policy packs: legal calling hours and rules on abandoned calls, dated: the API and the doctor warn about a pack that
was not compared with the law for a year.

Not legal advice. A pack applies to the numbers of its country or area codes, wherever the caller is. Packs add to each
other and to a tenant's own rules, and the strictest wins; a tenant whose lawyers read the law otherwise names none of
them and writes windows of its own. The platform may edit them, and add others: its layer of policy holds the edited
ones, which replace those here.
"""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Annotated

from pydantic import Field

from trunkline.leads.abandonment import NAMES_THE_CALLER, Message, Share
from trunkline.leads.immutable import Frozen
from trunkline.leads.limits import PersonLimit
from trunkline.leads.windows import HolidayCalendar, TimeSpan, Weekday, Window
from trunkline.leads.zones import region_of

PackName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$", examples=["us-tcpa"])]
AreaPrefix = Annotated[str, Field(pattern=r"^\+[1-9][0-9]{0,14}$", examples=["+1405"])]


# Rules change; the API and the doctor warn about a pack older than this.
OLD_AFTER = timedelta(days=365)


class AbandonedCalls(Frozen):
    """The rules of a country for abandoned calls."""

    max_share: Share | None = Field(
        None, description="Of the calls that a person answered, over 30 days. 0: an agent for every call."
    )
    message: Message | None = Field(
        None, description="The message for an abandoned call, unless the policy sets another one."
    )
    ring_min_s: int | None = Field(None, ge=1, le=120, description="The minimum ring time.")


class Pack(Frozen):
    """Without a country and without prefixes it applies to all numbers."""

    name: PackName
    as_of: date = Field(description="When it was last compared with the law.")
    note: str = Field(max_length=500, description="What it is based on.")
    windows: tuple[Window, ...] = Field((), max_length=20, description="When calls are allowed.")
    person_limits: tuple[PersonLimit, ...] = Field(
        (), max_length=10, description="How often one person is called at most."
    )
    abandoned_calls: AbandonedCalls | None = Field(
        None, description="Overdialling: the share, the message, the ring time, and the next call."
    )
    region: str | None = Field(None, pattern=r"^[A-Z]{2}$", description="The country of the callee's number.")
    prefixes: tuple[AreaPrefix, ...] = Field((), max_length=500, description="Instead of the country.")

    def concerns(self, phone: str) -> bool:
        if self.prefixes:
            return phone.startswith(self.prefixes)
        return self.region is None or region_of(phone) == self.region

    def is_old(self, today: date) -> bool:
        return today - self.as_of > OLD_AFTER


def warnings(packs: Iterable[Pack], today: date) -> list[str]:
    """One sentence for each pack that is old."""
    return [
        f"The pack {pack.name} was last compared with the law on {pack.as_of.isoformat()}: "
        "compare it again, and edit it or set its date (PUT /api/v1/policy/packs/{pack_name})."
        for pack in packs
        if pack.is_old(today)
    ]


def known_packs(edited: Iterable[Pack]) -> Mapping[str, Pack]:
    return PACKS | {pack.name: pack for pack in edited}


def named(name: str, known: Mapping[str, Pack]) -> Pack:
    """A pack that was removed while a policy names it counts as all packs together: strict, and hard to miss."""
    pack = known.get(name)
    if pack is not None:
        return pack
    return Pack(
        name=name,
        as_of=date.min,
        note="This pack does not exist any more.",
        windows=tuple(window for pack in PACKS.values() for window in pack.windows)[:20],
        abandoned_calls=_NONE_ABANDONED,
    )


def _pack(
    name: str, as_of: date, note: str, *windows: Window, region: str | None = None, **more: object
) -> Pack:
    return Pack.model_validate(
        {"name": name, "as_of": as_of, "note": note, "windows": windows, "region": region, **more}
    )


def _daily(start: str, end: str) -> Window:
    return Window(spans=(TimeSpan(start=start, end=end),))


def _on(days: tuple[Weekday, ...], start: str, end: str) -> TimeSpan:
    return TimeSpan(days=days, start=start, end=end)


_WEEK: tuple[Weekday, ...] = ("mon", "tue", "wed", "thu", "fri")
_WEEKEND: tuple[Weekday, ...] = ("sat", "sun")


def _area_codes(*codes: int) -> tuple[str, ...]:
    return tuple(f"+1{code}" for code in codes)


_THREE_A_DAY = (PersonLimit(max_calls=3, window_h=24),)
_FLORIDA = _area_codes(
    239, 305, 321, 324, 352, 386, 407, 448, 561, 645, 656, 689, 727, 728, 754, 772, 786, 813, 850, 863, 904, 941, 954
)  # fmt: skip

# 47 CFR 64.1200(a)(6) and (7), 16 CFR 310.4(b)(4): `docs/explanation/abandonment.md`.
_UNITED_STATES = AbandonedCalls(max_share=0.03, message=NAMES_THE_CALLER, ring_min_s=15)
# Ofcom's statement of 2016 names no share that is tolerated.
_UNITED_KINGDOM = AbandonedCalls(max_share=0, message=NAMES_THE_CALLER, ring_min_s=15)
_NONE_ABANDONED = AbandonedCalls(max_share=0, message=NAMES_THE_CALLER, ring_min_s=15)

PACKS: dict[str, Pack] = {
    pack.name: pack
    for pack in (
        _pack(
            "us-tcpa",
            date(2026, 11, 16),
            "United States: 08:00 to 21:00 where the callee is; at most 3 % of the calls that a person answered are "
            "abandoned, with a message that names the caller.",
            _daily("08:00", "21:00"),
            abandoned_calls=_UNITED_STATES,
            region="US",
        ),
        _pack(
            "us-ok",
            date(2025, 1, 1),
            "Oklahoma: 08:00 to 20:00, three calls a day. An area code is presumed to be a residence.",
            _daily("08:00", "20:00"),
            person_limits=_THREE_A_DAY,
            prefixes=_area_codes(405, 539, 572, 580, 918),
        ),
        _pack(
            "us-fl",
            date(2025, 1, 1),
            "Florida: 08:00 to 20:00, three calls a day. An area code is presumed to be a residence.",
            _daily("08:00", "20:00"),
            person_limits=_THREE_A_DAY,
            prefixes=_FLORIDA,
        ),
        _pack(
            "ca-crtc",
            date(2025, 1, 1),
            "Canada: 09:00 to 21:30 on weekdays, 10:00 to 18:00 on weekends, where the callee is.",
            Window(spans=(_on(_WEEK, "09:00", "21:30"), _on(_WEEKEND, "10:00", "18:00"))),
            region="CA",
        ),
        _pack(
            "gb-dma",
            # The law in it, on abandoned calls, was compared then. Its hours are not law: the note dates them.
            date(2026, 11, 16),
            "United Kingdom, the industry's guide (compared on 2025-01-01), as no law names hours: 08:00 to 21:00 on "
            "weekdays, 09:00 to 21:00 on Saturdays, not on Sundays and public holidays. "
            "Ofcom tolerates no share of abandoned calls.",
            Window(
                spans=(_on(_WEEK, "08:00", "21:00"), _on(("sat",), "09:00", "21:00")),
                holidays=(HolidayCalendar(country="GB"),),
            ),
            abandoned_calls=_UNITED_KINGDOM,
            region="GB",
        ),
        _pack(
            "fr-prospection",
            date(2025, 1, 1),
            "France, decree 2022-1313: weekdays 10:00 to 13:00 and 14:00 to 20:00, not on public holidays.",
            Window(
                spans=(_on(_WEEK, "10:00", "13:00"), _on(_WEEK, "14:00", "20:00")),
                holidays=(HolidayCalendar(country="FR"),),
            ),
            region="FR",
        ),
        _pack(
            "au-telemarketing",
            date(2025, 1, 1),
            "Australia, standard of 2017: 09:00 to 20:00 on weekdays, 09:00 to 17:00 on Saturdays, not on Sundays and "
            "national public holidays.",
            Window(
                spans=(_on(_WEEK, "09:00", "20:00"), _on(("sat",), "09:00", "17:00")),
                holidays=(HolidayCalendar(country="AU"),),
            ),
            region="AU",
        ),
        _pack(
            "in-trai",
            date(2025, 1, 1),
            "India: no commercial calls between 21:00 and 09:00.",
            _daily("09:00", "21:00"),
            region="IN",
        ),
        _pack(
            "in-rbi-recovery",
            date(2025, 1, 1),
            "India, recovery of debts: 08:00 to 19:00.",
            _daily("08:00", "19:00"),
            region="IN",
        ),
    )
}

"""Policy packs: legal calling hours as people expect them, dated, so that it can be seen how old they are.

Not legal advice. A pack concerns the numbers of its countries or area codes, wherever the caller is. Packs add to each
other and to a tenant's own rules, and the strictest wins; a tenant whose lawyers read the law otherwise names none of
them and writes windows of its own.
"""

from dataclasses import dataclass
from datetime import date

from trunkline.leads.limits import PersonLimit
from trunkline.leads.windows import Span, Window
from trunkline.leads.zones import region_of


@dataclass(frozen=True, slots=True)
class Pack:
    name: str
    as_of: date
    note: str
    windows: tuple[Window, ...]
    person_limits: tuple[PersonLimit, ...] = ()
    region: str | None = None
    prefixes: tuple[str, ...] = ()

    def concerns(self, phone: str) -> bool:
        return phone.startswith(self.prefixes) if self.prefixes else region_of(phone) == self.region


def _daily(start: str, end: str) -> tuple[Window, ...]:
    return (Window(spans=(Span(start=start, end=end),)),)


def _area_codes(*codes: int) -> tuple[str, ...]:
    return tuple(f"+1{code}" for code in codes)


_THREE_A_DAY = (PersonLimit(max_calls=3, window_h=24),)
_FLORIDA = _area_codes(
    239, 305, 321, 324, 352, 386, 407, 448, 561, 645, 656, 689, 727, 728, 754, 772, 786, 813, 850, 863, 904, 941, 954
)  # fmt: skip

PACKS: dict[str, Pack] = {
    pack.name: pack
    for pack in (
        Pack(
            "us-tcpa",
            date(2025, 1, 1),
            "United States: 08:00 to 21:00 where the callee is.",
            _daily("08:00", "21:00"),
            region="US",
        ),
        Pack(
            "us-ok",
            date(2025, 1, 1),
            "Oklahoma: 08:00 to 20:00, three calls a day. An area code is presumed to be a residence.",
            _daily("08:00", "20:00"),
            _THREE_A_DAY,
            prefixes=_area_codes(405, 539, 572, 580, 918),
        ),
        Pack(
            "us-fl",
            date(2025, 1, 1),
            "Florida: 08:00 to 20:00, three calls a day. An area code is presumed to be a residence.",
            _daily("08:00", "20:00"),
            _THREE_A_DAY,
            prefixes=_FLORIDA,
        ),
        Pack(
            "in-trai",
            date(2025, 1, 1),
            "India: no commercial calls between 21:00 and 09:00.",
            _daily("09:00", "21:00"),
            region="IN",
        ),
        Pack(
            "in-rbi-recovery",
            date(2025, 1, 1),
            "India, recovery of debts: 08:00 to 19:00.",
            _daily("08:00", "19:00"),
            region="IN",
        ),
    )
}

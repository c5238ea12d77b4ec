"""The leads of a plan: from rows of a file to leads, each with the times at which it may be called. Pure."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from trunkline.campaigns.rows import Columns
from trunkline.leads import phones
from trunkline.leads.calling_policy import Effective
from trunkline.leads.limits import PersonLimit
from trunkline.leads.uploads import UploadRow
from trunkline.leads.windows import WindowRule
from trunkline.leads.zones import zones_of

# Country code, area code, and one more digit.
PREFIX = 6


@dataclass(frozen=True, slots=True, eq=False)
class CalleeRules:
    """The rules for a callee: one object for all that share them, compared by identity."""

    rules: tuple[WindowRule, ...]
    limits: tuple[PersonLimit, ...]


@dataclass(frozen=True, slots=True)
class PlannedLead:
    row: int
    phone: str
    place: CalleeRules
    wanted_at: datetime | None
    priority: int
    max_attempts: int


@dataclass(frozen=True, slots=True)
class PlanRefusal:
    """A row that will not be called, and why."""

    row: int
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Usual:
    """Defaults for the fields that a row leaves out."""

    region: str | None = None
    priority: int = 50
    max_attempts: int = 3


class People:
    """Converts rows one by one. A phone that came before is a duplicate."""

    def __init__(
        self, policy: Effective, usual: Usual, columns: Columns, do_not_call: Container[str] = frozenset()
    ):
        self._policy = policy
        self._usual = usual
        self._columns = columns
        self._do_not_call = do_not_call
        self._seen: set[str] = set()
        self._places: dict[tuple[object, ...], CalleeRules] = {}
        self._alike: dict[tuple[object, ...], CalleeRules] = {}
        self._zones = available_timezones()

    def of(self, rows: Iterable[UploadRow]) -> Iterator[PlannedLead | PlanRefusal]:
        for row in rows:
            yield self._lead(row)

    def _lead(self, row: UploadRow) -> PlannedLead | PlanRefusal:
        if row.error is not None or not isinstance(row.value, dict):
            return PlanRefusal(row.no, "unreadable", row.error or "The row is no object.")
        fields = {self._columns.name(str(column)): cell for column, cell in row.value.items()}
        phone = phones.to_e164(str(fields.get("phone") or ""), self._usual.region)
        if isinstance(phone, phones.BadPhone):
            return PlanRefusal(row.no, "invalid_phone", phone.error)
        if (reason := self._refusal(phone)) is not None:
            return PlanRefusal(row.no, reason, phone)
        self._seen.add(phone)
        try:
            return self._planned(row.no, phone, fields)
        except ValueError as error:
            return PlanRefusal(row.no, "invalid_row", str(error))

    def _refusal(self, phone: str) -> str | None:
        if phone in self._seen:
            return "duplicate"
        if phone in self._do_not_call:
            return "do_not_call"
        return None if self._policy.permits(phone) else "destination_not_allowed"

    def _planned(self, row_no: int, phone: str, fields: dict[str | None, Any]) -> PlannedLead:
        zone = fields.get("timezone") or None
        if zone is not None and zone not in self._zones:
            raise ValueError(f"there is no time zone {str(zone)[:60]!r}")
        place = self._place(phone, zone)
        if place.rules and not all(rule.zones for rule in place.rules):
            raise ValueError("its time zone is unknown")
        return PlannedLead(
            row_no,
            phone,
            place,
            _parse_time(fields.get("scheduled_at")),
            _number(fields.get("priority"), self._usual.priority, 1, 99),
            _number(fields.get("max_attempts"), self._usual.max_attempts, 1, 20),
        )

    def _place(self, phone: str, zone: str | None) -> CalleeRules:
        """Computed once for all numbers with the same prefix and length: exact enough for a plan, and five times as
        fast. The dial computes it for each."""
        alike = (phone[:PREFIX], len(phone), zone)
        place = self._alike.get(alike)
        if place is None:
            place = self._alike[alike] = self._place_of(phone, zone)
        return place

    def _place_of(self, phone: str, zone: str | None) -> CalleeRules:
        """One object for all callees with the same rules: most leads of a campaign share a few."""
        policy = self._policy
        own_zone = zone or policy.timezone
        zones = (own_zone,) if own_zone else zones_of(phone) if policy.windows or policy.packs else ()
        packs = tuple(pack.name for pack in policy.packs if pack.concerns(phone)) if policy.packs else ()
        place = self._places.get((zones, packs))
        if place is None:
            place = CalleeRules(policy.rules_of(phone, zone), policy.limits_of(phone))
            self._places[zones, packs] = place
        return place


def _parse_time(text: Any) -> datetime | None:
    if text in (None, ""):
        return None
    moment = datetime.fromisoformat(str(text))
    if moment.tzinfo is None:
        raise ValueError("scheduled_at has no offset from UTC")
    return moment.astimezone(ZoneInfo("UTC"))


def _number(value: Any, usual: int, least: int, most: int) -> int:
    number = usual if value in (None, "") else int(value)
    if not least <= number <= most:
        raise ValueError(f"{number} is not between {least} and {most}")
    return number

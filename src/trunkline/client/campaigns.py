"""Campaigns and reminders: many leads under one policy, and calls to one person at a local time."""

import json
from collections.abc import AsyncIterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack
from urllib.parse import urlencode

from trunkline.client.decoding import decoded
from trunkline.client.leads import report_of
from trunkline.client.models import UploadReport
from trunkline.client.operations import ROOT, Key, given, path
from trunkline.client.transport import Transport
from trunkline.schema.campaigns import Campaign
from trunkline.schema.reminders import Reminder

UPLOAD_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class CampaignArguments:
    name: str
    _: KW_ONLY
    merchant_id: str | None = None
    policy: Mapping[str, Any] | None = None
    pool: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignSelection:
    status: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderSelection:
    merchant_id: str | None = None
    status: str | None = None
    phone: str | None = None


class ReminderDetails(TypedDict, total=False):
    """What a reminder may have beside its time."""

    merchant_id: str | None
    rrule: str | None
    message: str | None
    assistant_id: str | None
    payload: Mapping[str, Any] | None
    carrier: str | None
    pool: str | None
    request_id: str | None


async def upload_campaign(
    api: Transport,
    campaign_id: Key,
    body: AsyncIterable[bytes],
    content_type: str = "text/csv",
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str = "utf-8",
) -> UploadReport:
    """A file of any size, streamed. `columns` maps fields to columns: `{"phone": "Mobile"}`."""
    query = [("map", f"{field}:{column}") for field, column in (columns or {}).items()]
    where = f"{path('campaigns', campaign_id, 'leads')}?{urlencode([*query, ('encoding', encoding)])}"
    return report_of(await api.upload(where, body, content_type, {}, UPLOAD_TIMEOUT_S))


async def plan_campaign(
    api: Transport,
    body: AsyncIterable[bytes],
    content_type: str = "text/csv",
    *,
    settings: Mapping[str, Any] | None = None,
    merchant_id: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Simulates a campaign of these rows. Nobody is called, and nothing is stored."""
    query = [("map", f"{field}:{column}") for field, column in (columns or {}).items()]
    query += given(settings=settings and json.dumps(settings), merchant_id=merchant_id).items()
    where = f"{ROOT}/campaigns/plan?{urlencode(query)}"
    plan: dict[str, Any] = await api.upload(where, body, content_type, {}, UPLOAD_TIMEOUT_S)
    return plan


async def start_campaign(api: Transport, campaign_id: Key, *, ramp_s: int = 0) -> Campaign:
    return await _act(api, campaign_id, "start", {"ramp_s": ramp_s})


async def pause_campaign(api: Transport, campaign_id: Key, reason: str = "paused") -> Campaign:
    """Within a second no new call is started."""
    return await _act(api, campaign_id, "pause", {"reason": reason})


async def resume_campaign(api: Transport, campaign_id: Key, *, ramp_s: int = 0) -> Campaign:
    return await _act(api, campaign_id, "resume", {"ramp_s": ramp_s})


async def stop_campaign(
    api: Transport, campaign_id: Key, reason: str = "stopped", *, hang_up: bool = False
) -> Campaign:
    """For good. Waiting leads end; live calls go on, or are hung up with `hang_up`."""
    return await _act(api, campaign_id, "stop", {"reason": reason, "hang_up": hang_up})


async def _act(api: Transport, campaign_id: Key, what: str, body: dict[str, Any]) -> Campaign:
    return decoded(Campaign, await api.post(path("campaigns", campaign_id, what), body))


async def create_reminder(
    api: Transport, phone: str, starts_at: datetime, timezone: str, **details: Unpack[ReminderDetails]
) -> Reminder:
    """`starts_at` is a wall time in `timezone`, so it has no zone of its own."""
    if starts_at.tzinfo is not None:
        raise ValueError("starts_at is a wall time: give it without a time zone")
    wall_at = starts_at.isoformat(timespec="seconds")
    body = given(phone=phone, starts_at=wall_at, timezone=timezone, **details)
    return decoded(Reminder, await api.post(f"{ROOT}/reminders", body))


async def skip_occurrence(api: Transport, reminder_id: Key, wall_at: datetime | None = None) -> Reminder:
    """The next one, or the one at a wall time."""
    body = given(wall_at=wall_at and wall_at.isoformat(timespec="seconds"))
    return decoded(Reminder, await api.post(path("reminders", reminder_id, "skip"), body))


async def cancel_reminder(api: Transport, reminder_id: Key, *, hang_up: bool = False) -> Reminder:
    params: dict[str, str | int] = {"hang_up": "true" if hang_up else "false"}
    return decoded(Reminder, await api.delete(path("reminders", reminder_id), params))

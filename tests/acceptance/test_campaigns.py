"""A campaign and a reminder through the whole platform, judged by the carrier's own ledger."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.support.waiting import eventually
from tests.support.world import World
from trunkline.client import Occurrence

FROM = "+14155550100"
# Answered, and never hung up by the callee.
TALKS = "+150055516"


@pytest.fixture(autouse=True)
async def number(world: World) -> None:
    await world.client.create_number(FROM, pool="p", carrier="twilio", max_channels=1)


async def file(count: int, prefix: str = TALKS) -> AsyncIterator[bytes]:
    yield b"Mobile,name\n"
    for n in range(count):
        yield f"{prefix}{n:02},n{n}\n".encode()


async def test_a_campaign_dials_only_while_it_runs(world: World) -> None:
    client, ledger = world.client, world.carrier.ledger
    campaign = await client.create_campaign("Renewals", merchant_id="m", pool="p", max_attempts=1)
    report = await client.upload_campaign(campaign.id, file(4), columns={"phone": "Mobile"})
    assert report.created == 4
    # Somebody else's lead is called past the draft.
    other = await client.create_lead(merchant_id="m", phone="+15005551001", pool="p", request_id=str(uuid4()))
    await world.finished(other.id)
    assert [dial.to for dial in ledger.dials] == ["+15005551001"]

    await client.start_campaign(campaign.id)
    await eventually(lambda: ledger.live() == 1, what="the campaign's first call")
    await client.pause_campaign(campaign.id)
    controls = world.platform.control.controls

    async def is_known() -> bool:
        return controls.stopped(reseller_id="r", merchant_id="m", campaign_id=campaign.id) is not None

    await eventually(is_known, what="dialers know of the pause")
    [live] = [lead async for lead in client.list_leads(status="PROCESSING")]
    await client.abort_lead(live.id, "enough", hang_up=True)
    await world.finished(live.id)
    last = await client.create_lead(merchant_id="m", phone="+15005551002", pool="p", request_id=str(uuid4()))
    await world.finished(last.id)
    assert len(ledger.dials) == 3, (
        "the free channel went to somebody else, nobody of the campaign was dialled"
    )

    await client.resume_campaign(campaign.id)
    await eventually(lambda: ledger.live() == 1, what="the next call of the campaign")
    await client.stop_campaign(campaign.id, "sold out", hang_up=True)

    async def is_over() -> bool:
        has_ended = (await client.campaign_progress(campaign.id)).finished == 4
        return has_ended and (await client.get_campaign(campaign.id)).status == "STOPPED"

    await eventually(is_over, timeout_s=20, what="all of it ended")
    assert len(ledger.dials) == 4, "two of four were dialled"
    assert (await client.campaign_progress(campaign.id)).outcomes["ABORTED"] >= 2


async def test_a_reminders_occurrence_is_completed_by_its_answered_call(world: World) -> None:
    tomorrow = datetime.now(UTC).replace(tzinfo=None, microsecond=0) + timedelta(days=1)
    reminder = await world.client.create_reminder(
        "+15005551003",
        tomorrow,
        "UTC",
        merchant_id="m",
        rrule="FREQ=DAILY",
        carrier="twilio",
        message="Hello",
    )
    await world.client.ring_next(reminder.id)

    async def completed() -> Occurrence | None:
        found = [each async for each in world.client.list_occurrences(reminder.id)]
        return found[-1] if found and found[-1].state == "COMPLETED" else None

    occurrence = await eventually(completed, timeout_s=20, what="the reminder was answered")
    assert occurrence.attempt_count == 1
    assert occurrence.external_call_id is not None
    assert occurrence.idempotency_key is not None
    followed = await world.client.get_reminder(reminder.id)
    assert followed.next_wall == tomorrow + timedelta(days=1), "it rang in the place of tomorrow's"

"""Sixteen leads are taken in while another dialer calls them. Event dispatch is turned on: none of them is rung."""

from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, World
from trunkline.client.transport import Transport

FLAG = "/api/v1/flags/event_dispatch"
OFF = {"enabled": True, "percentage": 0}
ON = OFF | {"resellers": {"r": True}}
THEIRS = [f"+150055510{n:02}" for n in range(16)]
OURS = "+15005551099"


async def test_turning_event_dispatch_on_dials_no_lead_that_was_due_before(world: World) -> None:
    await world.client.create_number("+14155550100", pool="p", carrier="twilio", max_channels=20)
    api = Transport(world.platform.base_url, ADMIN_KEY, 10.0)
    try:
        flag = await api.put(FLAG, OFF | {"reason": "dual write"})
        rows = [{"request_id": phone, "merchant_id": "m", "phone": phone} for phone in THEIRS]
        rollout = world.platform.control.rollout
        await eventually(lambda: not rollout.includes("r", "m"), what="it is left out")
        assert (await world.client.create_leads(rows)).created == len(THEIRS)
        preview = await api.post(f"{FLAG}/preview", ON)
        assert (preview["turned_on"], preview["overdue"]) == (1, 16)
        assert world.carrier.ledger.dials == []

        await api.put(FLAG, ON | {"reason": "cutover", "version": flag["version"]})
        lead = await world.client.create_lead(merchant_id="m", request_id="ours", phone=OURS)
        assert (await world.finished(lead.id)).outcome == "ANSWERED"
        theirs = [each async for each in world.client.list_leads(status="FINISHED") if each.phone != OURS]
    finally:
        await api.close()
    assert [dial.to for dial in world.carrier.ledger.dials] == [OURS]
    assert {(each.outcome, each.outcome_reason) for each in theirs} == {("ABORTED", "DUE_BEFORE_CUTOVER")}
    assert len(theirs) == 16

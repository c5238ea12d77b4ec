"""The enrichments of a call can be read by its tenant, and by no other."""

from collections.abc import AsyncIterator

import pytest

from tests.support.api.world import ApiWorld, expect, open_api


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def test_an_enrichment_is_part_of_its_call_and_of_its_lead(world: ApiWorld) -> None:
    ids = await world.objects_of("a1")
    mine = world.tenant("a1", "read")
    path = f"/api/v1/attempts/{ids['attempt_id']}/enrichments"
    [item] = expect(await mine.get(path), 200)["items"]
    assert (item["status"], item["transcript"], item["data"]) == ("READY", "Hello. Goodbye.", {"score": 3})
    assert item["recording_url"] == f"{path}/{ids['item_id']}/recording"
    assert expect(await mine.get(f"/api/v1/leads/{ids['lead_id']}"), 200)["enrichments"] == [item]


async def test_a_recording_is_served_to_its_tenant_alone(world: ApiWorld) -> None:
    ids = await world.objects_of("a1")
    path = f"/api/v1/attempts/{ids['attempt_id']}/enrichments/{ids['item_id']}/recording"
    served = await world.tenant("a1", "read").get(path)
    assert (served.status, served.body) == (200, b"RIFF of a call")
    assert served.headers["content-type"] == "audio/wav"
    for stranger in ("a2", "b", "b1"):
        assert (await world.tenant(stranger, "read").get(path)).status == 404


@pytest.mark.parametrize("ref", ["s3://bucket/call.wav", "../../etc/passwd", "recording-gone"])
async def test_a_recording_reference_that_is_not_stored_here_is_shown_and_not_served(
    world: ApiWorld, ref: str
) -> None:
    ids = await world.objects_of("a1")
    async with world.database.connection() as conn:
        await conn.execute("UPDATE call_enrichments SET recording_ref = $1", ref)
    mine, path = world.tenant("a1", "read"), f"/api/v1/attempts/{ids['attempt_id']}/enrichments"
    [item] = expect(await mine.get(path), 200)["items"]
    assert (item["recording_ref"], item["recording_url"]) == (ref, None)
    assert (await mine.get(f"{path}/{ids['item_id']}/recording")).status == 404

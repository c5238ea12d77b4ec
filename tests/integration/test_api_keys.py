import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from tests.support.api.world import ApiWorld, expect, open_api
from trunkline.api import key_format, key_verifier
from trunkline.api.admin_key import AdminKeyError, AdminKeyState, ensure_admin_key

KEYS = "/api/v1/keys"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url) as world:
        yield world


async def audited(world: ApiWorld, subject: str) -> list[tuple[str, str]]:
    async with world.database.connection() as connection:
        rows = await connection.fetch(
            "SELECT action, actor FROM audit_log WHERE subject = $1 ORDER BY id", subject
        )
    return [(row["action"], row["actor"]) for row in rows]


async def test_a_key_is_shown_once_and_stored_as_its_hash(world: ApiWorld) -> None:
    made = expect(await world.admin.post(KEYS, {"name": "k", "scopes": ["read"], "merchant_id": "a1"}), 201)
    secret = made.pop("key")
    assert key_format.is_well_formed(secret)
    assert (made["reseller_id"], made["merchant_id"]) == ("a", "a1")
    assert expect(await world.admin.get(f"{KEYS}/{made['id']}"), 200) == made
    async with world.database.connection() as connection:
        row = await connection.fetchrow(
            "SELECT k::text AS text, key_hash FROM api_keys k WHERE id = $1", made["id"]
        )
    assert row is not None
    assert secret not in row["text"]
    assert row["key_hash"] == key_format.digest(secret)


async def test_making_and_revoking_a_key_is_in_the_audit_log(world: ApiWorld) -> None:
    me = expect(await world.tenant("a").get("/api/v1/me"), 200)
    made = expect(await world.tenant("a").post(KEYS, {"name": "k", "scopes": ["read"]}), 201)
    for _ in range(2):
        expect(await world.tenant("a").delete(f"{KEYS}/{made['id']}"), 200)
    actor = f"key:{me['key_id']}"
    assert await audited(world, made["id"]) == [("key.created", actor), ("key.revoked", actor)]


async def test_a_revoked_key_is_refused_at_once_by_the_process_that_revoked_it(world: ApiWorld) -> None:
    client = world.tenant("a1")
    me = expect(await client.get("/api/v1/me"), 200)
    first = expect(await world.admin.delete(f"{KEYS}/{me['key_id']}"), 200)
    assert expect(await client.get("/api/v1/me"), 401)["code"] == "unauthorized"
    assert (
        expect(await world.admin.delete(f"{KEYS}/{me['key_id']}"), 200)["revoked_at"] == first["revoked_at"]
    )


async def test_a_revocation_by_another_process_takes_effect_within_ten_seconds(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_verifier, "REFRESH_WAIT_S", 30)
    client = world.tenant("a1")
    me = expect(await client.get("/api/v1/me"), 200)
    async with world.database.connection() as connection:
        await connection.execute("UPDATE api_keys SET revoked_at = now() WHERE id = $1", me["key_id"])
    expect(await client.get("/api/v1/me"), 200)
    world.clock.advance(10)
    expect(await client.get("/api/v1/me"), 401)


async def test_an_expired_key_is_refused(world: ApiWorld) -> None:
    expires_at = (world.clock.now() + timedelta(seconds=60)).isoformat()
    body = {"name": "k", "scopes": ["read"], "expires_at": expires_at}
    secret = expect(await world.admin.post(KEYS, body), 201)["key"]
    client = world.anybody.with_key(secret)
    expect(await client.get("/api/v1/me"), 200)
    world.clock.advance(61)
    expect(await client.get("/api/v1/me"), 401)
    assert expect(await world.admin.post(KEYS, body), 422)["fields"][0]["field"] == "expires_at"


async def test_a_tenant_makes_keys_for_itself_and_for_those_below(
    world: ApiWorld, subtests: pytest.Subtests
) -> None:
    for tenant, body, owner in [
        ("a", {}, ("a", None)),
        ("a", {"reseller_id": "a"}, ("a", None)),
        ("a", {"merchant_id": "a2"}, ("a", "a2")),
        ("a1", {}, ("a", "a1")),
        ("a1", {"merchant_id": "a1", "reseller_id": "a"}, ("a", "a1")),
    ]:
        with subtests.test(tenant=tenant, body=body, owner=owner):
            made = expect(
                await world.tenant(tenant).post(KEYS, {"name": "k", "scopes": ["read"], **body}), 201
            )
            assert (made["reseller_id"], made["merchant_id"]) == owner


async def test_a_tenant_cannot_make_keys_for_another(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for tenant, body in [
        ("a", {"reseller_id": "b"}),
        ("a", {"merchant_id": "b1"}),
        ("a1", {"merchant_id": "a2"}),
        ("a1", {"merchant_id": "b1", "reseller_id": "b"}),
    ]:
        with subtests.test(tenant=tenant, body=body):
            refused = expect(
                await world.tenant(tenant).post(KEYS, {"name": "k", "scopes": ["read"], **body}), 404
            )
            assert refused["code"].startswith("unknown_")


async def test_a_merchant_of_another_reseller_than_named_is_refused(world: ApiWorld) -> None:
    body = {"name": "k", "scopes": ["read"], "merchant_id": "a1", "reseller_id": "b"}
    assert expect(await world.admin.post(KEYS, body), 422)["fields"][0]["field"] == "reseller_id"


async def test_a_key_with_invalid_scopes_is_refused(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for scopes in [[], ["root"], ["read", "read"], "read", None]:
        with subtests.test(scopes=scopes):
            expect(await world.admin.post(KEYS, {"name": "k", "scopes": scopes}), 422)


async def test_a_header_without_a_good_key_is_401(world: ApiWorld, subtests: pytest.Subtests) -> None:
    for header in [
        "",
        "Bearer",
        "Bearer ",
        "Basic dTpw",
        "Bearer nonsense",
        "Bearer tl_abc",
        "Bearer " + "x" * 5000,
        "bearer",
    ]:
        with subtests.test(header=header):
            answer = await world.anybody.get("/api/v1/me", headers={"authorization": header})
            assert expect(answer, 401)["code"] == "unauthorized"


async def test_the_word_bearer_may_be_written_in_any_case(world: ApiWorld) -> None:
    headers = {"authorization": f"bEARER {world.keys['a1', 'read']}"}
    expect(await world.anybody.get("/api/v1/me", headers=headers), 200)


async def test_me_says_whose_key_it_is(world: ApiWorld) -> None:
    me = expect(await world.tenant("a1", "leads").get("/api/v1/me"), 200)
    assert (me["scopes"], me["reseller_id"], me["merchant_id"]) == (["leads"], "a", "a1")


async def test_the_operators_key_is_made_once_however_many_processes_start(world: ApiWorld) -> None:
    key = "chosen-by-the-operator"
    states = await asyncio.gather(*(ensure_admin_key(world.database, key) for _ in range(8)))
    assert sorted(states) == [AdminKeyState.CREATED] + [AdminKeyState.KNOWN] * 7
    me = expect(await world.anybody.with_key(key).get("/api/v1/me"), 200)
    assert (me["scopes"], me["reseller_id"], me["merchant_id"]) == (["admin"], None, None)
    assert await audited(world, me["key_id"]) == [("key.created", "operator")]


async def test_the_environment_does_not_bring_a_revoked_key_back(world: ApiWorld) -> None:
    key = "chosen-by-the-operator"
    await ensure_admin_key(world.database, key)
    me = expect(await world.anybody.with_key(key).get("/api/v1/me"), 200)
    expect(await world.admin.delete(f"{KEYS}/{me['key_id']}"), 200)
    assert await ensure_admin_key(world.database, key) is AdminKeyState.UNUSABLE
    expect(await world.anybody.with_key(key).get("/api/v1/me"), 401)


async def test_an_ill_formed_admin_key_of_the_environment_is_refused(
    world: ApiWorld, subtests: pytest.Subtests
) -> None:
    for key in ["short", "with a space in it", "tl_not-one-of-ours-at-all"]:
        with subtests.test(key=key), pytest.raises(AdminKeyError, match="TRUNKLINE_ADMIN_KEY must have 16"):
            await ensure_admin_key(world.database, key)


async def test_a_key_with_fewer_rights_cannot_become_the_admin_key(world: ApiWorld) -> None:
    with pytest.raises(AdminKeyError, match="fewer rights"):
        await ensure_admin_key(world.database, world.keys["a1", "admin"])

import asyncio
from datetime import timedelta

import pytest

from trunkline.api import key_format, key_verifier
from trunkline.api.key_verifier import KeyVerifier
from trunkline.errors import StoreUnavailable
from trunkline.model import new_id
from trunkline.schema.keys import ApiKey
from trunkline.testing.clock import ManualClock

FRESH_S, STALE_S = 10.0, 900.0


class Keys:
    """A table of keys that counts its readers, and can be away."""

    def __init__(self) -> None:
        self.rows: dict[bytes, ApiKey] = {}
        self.questions = 0
        self.is_away = False
        self.gate: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def look_up(self, digest: bytes) -> ApiKey | None:
        self.questions += 1
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.is_away:
            raise StoreUnavailable("away")
        return self.rows.get(digest)

    def add(self, clock: ManualClock, *, expires_in_s: float | None = None) -> str:
        secret = key_format.mint()
        expires_at = None if expires_in_s is None else clock.now() + timedelta(seconds=expires_in_s)
        self.rows[key_format.digest(secret)] = ApiKey(
            id=new_id(),
            hint="",
            name="k",
            scopes=["read"],
            reseller_id="r",
            merchant_id=None,
            created_at=clock.now(),
            created_by="test",
            expires_at=expires_at,
            revoked_at=None,
        )
        return secret

    def revoke(self, secret: str, clock: ManualClock) -> None:
        key = self.rows[key_format.digest(secret)]
        fields = {name: getattr(key, name) for name in ApiKey.__slots__}
        self.rows[key_format.digest(secret)] = ApiKey(**{**fields, "revoked_at": clock.now()})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keys() -> Keys:
    return Keys()


@pytest.fixture
def verifier(keys: Keys, clock: ManualClock) -> KeyVerifier:
    return KeyVerifier(keys.look_up, clock, fresh_s=FRESH_S, stale_s=STALE_S)


async def test_a_known_key_is_read_from_the_store_once_while_it_is_fresh(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock
) -> None:
    secret = keys.add(clock)
    for _ in range(50):
        who = await verifier.verify(secret)
        assert who is not None
        assert who.tenant.reseller_id == "r"
    assert keys.questions == 1
    clock.advance(FRESH_S)
    await verifier.verify(secret)
    assert keys.questions == 2


async def test_a_bad_checksum_is_refused_without_reading_the_store(verifier: KeyVerifier, keys: Keys) -> None:
    assert await verifier.verify(key_format.mint()[:-1] + "!") is None
    assert await verifier.verify("short") is None
    assert keys.questions == 0


async def test_an_unknown_key_is_read_from_the_store_once(verifier: KeyVerifier, keys: Keys) -> None:
    stranger = key_format.mint()
    for _ in range(10):
        assert await verifier.verify(stranger) is None
    assert keys.questions == 1


async def test_unknown_keys_never_evict_a_known_one(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_verifier, "UNKNOWN_MAX", 5)
    secret = keys.add(clock)
    await verifier.verify(secret)
    for _ in range(20):
        await verifier.verify(key_format.mint())
    before = keys.questions
    await verifier.verify(secret)
    assert keys.questions == before
    assert len(verifier._unknown) == 5


async def test_the_least_recently_used_key_is_evicted(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_verifier, "KNOWN_MAX", 2)
    first, second, third = (keys.add(clock) for _ in range(3))
    for secret in (first, second, first, third):
        await verifier.verify(secret)
    assert set(verifier._known) == {key_format.digest(first), key_format.digest(third)}


async def test_a_revoked_key_is_refused_after_fresh_s(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock
) -> None:
    secret = keys.add(clock)
    await verifier.verify(secret)
    keys.revoke(secret, clock)
    clock.advance(FRESH_S)
    assert await verifier.verify(secret) is None


async def test_forget_refuses_a_revoked_key_at_once(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock
) -> None:
    secret = keys.add(clock)
    who = await verifier.verify(secret)
    assert who is not None
    keys.revoke(secret, clock)
    verifier.forget(who.key_id)
    assert await verifier.verify(secret) is None


async def test_a_cached_keys_expiry_is_checked_at_every_use(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock
) -> None:
    secret = keys.add(clock, expires_in_s=5)
    assert await verifier.verify(secret) is not None
    clock.advance(5)
    assert await verifier.verify(secret) is None
    assert keys.questions == 1


async def test_a_known_key_is_accepted_for_stale_s_without_the_store(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock
) -> None:
    secret = keys.add(clock)
    await verifier.verify(secret)
    keys.is_away = True
    clock.advance(STALE_S - 1)
    assert await verifier.verify(secret) is not None
    asked = keys.questions
    assert await verifier.verify(secret) is not None
    assert keys.questions == asked, "a store that is away is not asked for every request"
    clock.advance(key_verifier.RETRY_S)
    with pytest.raises(StoreUnavailable):
        await verifier.verify(secret)


async def test_an_unseen_key_raises_store_unavailable_without_the_store(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock
) -> None:
    secret = keys.add(clock)
    keys.is_away = True
    with pytest.raises(StoreUnavailable):
        await verifier.verify(secret)
    keys.is_away = False
    assert await verifier.verify(secret) is not None


async def test_a_slow_store_does_not_delay_a_known_key(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_verifier, "REFRESH_WAIT_S", 0)
    secret = keys.add(clock)
    await verifier.verify(secret)
    keys.gate = asyncio.Event()
    clock.advance(FRESH_S)
    assert await verifier.verify(secret) is not None
    keys.gate.set()


async def test_concurrent_requests_with_a_key_read_the_store_once(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock
) -> None:
    secret = keys.add(clock)
    keys.gate = asyncio.Event()
    waiting = [asyncio.create_task(verifier.verify(secret)) for _ in range(20)]
    await keys.asked.wait()
    waiting[0].cancel()
    keys.gate.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert keys.questions == 1
    assert isinstance(answers[0], asyncio.CancelledError)
    assert all(answer is not None and not isinstance(answer, BaseException) for answer in answers[1:])


async def test_an_unseen_key_waits_for_a_hanging_store_no_longer_than_ask_wait_s(
    verifier: KeyVerifier, keys: Keys, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_verifier, "ASK_WAIT_S", 0.01)
    secret, keys.gate = keys.add(clock), asyncio.Event()
    with pytest.raises(StoreUnavailable):
        await verifier.verify(secret)
    keys.gate.set()
    assert await verifier.verify(secret) is not None

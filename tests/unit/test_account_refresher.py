"""Looking at the accounts again: shared by all who wait, bounded in number and in time."""

import asyncio

from trunkline.errors import StoreUnavailable
from trunkline.telephony.accounts import AccountRefresher


class Accounts:
    """`read` counts; a reading ends when `go` is set."""

    def __init__(self) -> None:
        self.read = 0
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def refresh(self) -> None:
        self.read += 1
        self.began.set()
        await self.go.wait()


async def test_concurrent_waiters_share_one_reading_of_the_accounts() -> None:
    accounts = Accounts()
    refresher = AccountRefresher(accounts.refresh, wait_max_s=60.0)
    assert await asyncio.gather(*(refresher.again() for _ in range(50))) == ["looked"] * 50
    assert accounts.read == 1


async def test_a_waiter_that_comes_during_a_reading_waits_for_the_next_one() -> None:
    """The one under way may have begun before the account was there."""
    accounts = Accounts()
    accounts.go.clear()
    refresher = AccountRefresher(accounts.refresh, interval_s=0.0, wait_max_s=60.0)
    first = asyncio.create_task(refresher.again())
    await accounts.began.wait()
    others = [asyncio.create_task(refresher.again()) for _ in range(10)]
    await asyncio.sleep(0)
    accounts.go.set()
    assert await asyncio.gather(first, *others) == ["looked"] * 11
    assert accounts.read == 2


async def test_a_hanging_reading_is_unavailable_after_wait_max_s() -> None:
    accounts = Accounts()
    accounts.go.clear()
    refresher = AccountRefresher(accounts.refresh, wait_max_s=0.01)
    assert await refresher.again() == "unavailable"
    assert await refresher.again() == "unavailable"
    assert accounts.read == 1, "a second one is not begun beside it"
    accounts.go.set()


async def test_a_failed_reading_is_unavailable_and_the_next_one_is_tried() -> None:
    fails = True

    async def refresh() -> None:
        if fails:
            raise StoreUnavailable("away")

    refresher = AccountRefresher(refresh, interval_s=0.0, wait_max_s=60.0)
    assert await refresher.again() == "unavailable"
    fails = False
    assert await refresher.again() == "looked"


async def test_readings_of_the_accounts_are_interval_s_apart() -> None:
    accounts = Accounts()
    refresher = AccountRefresher(accounts.refresh, interval_s=3600.0, wait_max_s=0.01)
    asked = [asyncio.create_task(refresher.again()), accounts.began.wait()]
    await asyncio.gather(*asked)
    assert await refresher.again() == "unavailable"
    assert accounts.read == 1

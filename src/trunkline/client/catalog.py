"""Resellers, merchants, pools and numbers."""

from collections.abc import AsyncIterator
from typing import TypedDict, Unpack
from uuid import UUID

from trunkline.client.calls import PAGE_SIZE_MAX, Calls, decoded, given, path
from trunkline.client.models import Merchant, Number, Pool, Reseller


class MerchantChanges(TypedDict, total=False):
    name: str
    default_region: str | None
    default_pool: str | None
    weight: int
    max_concurrent: int | None
    agents: str


class PoolChanges(TypedDict, total=False):
    name: str
    overflow_pool: str | None
    overflow_after_s: float | None
    region_affinity: bool
    agents: str


class NumberChanges(TypedDict, total=False):
    pool: str
    carrier: str
    account: str
    max_channels: int
    starts_per_s: float | None
    status: str


class CatalogCalls(Calls):
    """In changes, omitted fields do not change."""

    async def create_reseller(self, reseller_id: str, name: str) -> Reseller:
        return await self._create(Reseller, "resellers", id=reseller_id, name=name)

    async def create_merchant(
        self,
        merchant_id: str,
        name: str,
        *,
        reseller_id: str | None = None,
        default_region: str | None = None,
        default_pool: str | None = None,
        weight: int | None = None,
        max_concurrent: int | None = None,
        agents: str | None = None,
    ) -> Merchant:
        return await self._create(
            Merchant,
            "merchants",
            id=merchant_id,
            name=name,
            reseller_id=reseller_id,
            default_region=default_region,
            default_pool=default_pool,
            weight=weight,
            max_concurrent=max_concurrent,
            agents=agents,
        )

    async def get_merchant(self, merchant_id: str) -> Merchant:
        return await self._get(Merchant, "merchants", merchant_id)

    async def list_merchants(self, *, reseller_id: str | None = None) -> AsyncIterator[Merchant]:
        async for merchant in self._list_all(Merchant, "merchants", PAGE_SIZE_MAX, reseller_id=reseller_id):
            yield merchant

    async def update_merchant(self, merchant_id: str, **changes: Unpack[MerchantChanges]) -> Merchant:
        return await self._change(Merchant, "merchants", merchant_id, dict(changes))

    async def delete_merchant(self, merchant_id: str) -> None:
        await self._transport.delete(path("merchants", merchant_id))

    async def create_pool(
        self,
        pool_id: str,
        name: str,
        *,
        reseller_id: str | None = None,
        merchant_id: str | None = None,
        overflow_pool: str | None = None,
        overflow_after_s: float | None = None,
        region_affinity: bool = False,
        agents: str | None = None,
    ) -> Pool:
        return await self._create(
            Pool,
            "pools",
            id=pool_id,
            name=name,
            reseller_id=reseller_id,
            merchant_id=merchant_id,
            overflow_pool=overflow_pool,
            overflow_after_s=overflow_after_s,
            region_affinity=region_affinity,
            agents=agents,
        )

    async def get_pool(self, pool_id: str) -> Pool:
        return await self._get(Pool, "pools", pool_id)

    async def list_pools(self) -> AsyncIterator[Pool]:
        async for pool in self._list_all(Pool, "pools", PAGE_SIZE_MAX):
            yield pool

    async def update_pool(self, pool_id: str, **changes: Unpack[PoolChanges]) -> Pool:
        return await self._change(Pool, "pools", pool_id, dict(changes))

    async def delete_pool(self, pool_id: str) -> None:
        await self._transport.delete(path("pools", pool_id))

    async def create_number(
        self,
        e164: str,
        *,
        pool: str,
        carrier: str,
        max_channels: int,
        account: str | None = None,
        starts_per_s: float | None = None,
        status: str | None = None,
    ) -> Number:
        return await self._create(
            Number,
            "numbers",
            e164=e164,
            pool=pool,
            carrier=carrier,
            max_channels=max_channels,
            account=account,
            starts_per_s=starts_per_s,
            status=status,
        )

    async def get_number(self, number_id: UUID | str) -> Number:
        return await self._get(Number, "numbers", number_id)

    async def list_numbers(self, *, pool: str | None = None) -> AsyncIterator[Number]:
        async for number in self._list_all(Number, "numbers", PAGE_SIZE_MAX, pool=pool):
            yield number

    async def update_number(self, number_id: UUID | str, **changes: Unpack[NumberChanges]) -> Number:
        return await self._change(Number, "numbers", number_id, dict(changes))

    async def delete_number(self, number_id: UUID | str, *, drain: bool = False) -> Number | None:
        """None if it was deleted; with `drain`, the draining number while it has live calls."""
        params = given(drain="true" if drain else None)
        answer = await self._transport.delete(path("numbers", number_id), params)
        return None if answer is None else decoded(Number, answer)

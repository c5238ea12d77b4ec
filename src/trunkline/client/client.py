"""The client: one method per thing that the API does.

Nothing is repeated behind the caller's back, with one exception: `create_lead` is idempotent by its `request_id`,
so it is sent again when there was no answer.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

from trunkline.client import models
from trunkline.client.errors import ApiError, Unreachable
from trunkline.client.models import (
    Health,
    Lead,
    LeadWithAttempts,
    Me,
    Merchant,
    Number,
    Pool,
    Reseller,
    T,
)
from trunkline.client.transport import Transport, is_transient

ROOT = "/api/v1"
LEAD_TRIES = 4
LEAD_FIRST_WAIT_S = 0.25
PAGE_SIZE_MAX = 200


class TrunklineClient:
    """Use it as `async with`, or call `close` at the end."""

    def __init__(self, base_url: str, api_key: str, *, timeout_s: float = 10.0):
        self._transport = Transport(base_url, api_key, timeout_s)

    async def __aenter__(self) -> "TrunklineClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def create_lead(
        self,
        *,
        phone: str | None = None,
        merchant_id: str | None = None,
        request_id: str | None = None,
        payload: Mapping[str, Any] | None = None,
        scheduled_at: datetime | None = None,
        priority: int | None = None,
        campaign_id: UUID | None = None,
        pool: str | None = None,
        max_attempts: int | None = None,
        reporting_webhook_url: str | None = None,
    ) -> Lead:
        """Have a person called. The same `request_id` again answers with the same lead and calls nobody twice.

        Give your own id (an order, a ticket) if your process may die and ask again; without one, one is made.
        """
        if scheduled_at is not None and scheduled_at.tzinfo is None:
            raise ValueError("scheduled_at needs a time zone")
        body = _given(
            request_id=request_id or str(uuid4()),
            merchant_id=merchant_id,
            phone=phone,
            payload=payload,
            scheduled_at=scheduled_at and scheduled_at.isoformat(),
            priority=priority,
            campaign_id=campaign_id and str(campaign_id),
            pool=pool,
            max_attempts=max_attempts,
            reporting_webhook_url=reporting_webhook_url,
        )
        return _decoded(Lead, await self._post_until_answered(f"{ROOT}/leads", body))

    async def get_lead(self, lead_id: UUID | str) -> LeadWithAttempts:
        path = f"{ROOT}/leads/{quote(str(lead_id), safe='')}"
        return _decoded(LeadWithAttempts, await self._transport.get(path))

    async def list_leads(
        self,
        *,
        status: str | None = None,
        merchant_id: str | None = None,
        campaign_id: UUID | None = None,
        phone: str | None = None,
        page_size: int = PAGE_SIZE_MAX,
    ) -> AsyncIterator[Lead]:
        """Every lead that fits, newest first, page by page as you iterate."""
        filters = _given(
            status=status,
            merchant_id=merchant_id,
            campaign_id=campaign_id and str(campaign_id),
            phone=phone,
            limit=page_size,
        )
        cursor: str | None = None
        while True:
            page = await self._transport.get(f"{ROOT}/leads", filters | _given(cursor=cursor))
            for item in page["items"]:
                yield _decoded(Lead, item)
            cursor = page["next_cursor"]
            if cursor is None:
                return

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
        )

    async def create_pool(
        self, pool_id: str, name: str, *, reseller_id: str | None = None, merchant_id: str | None = None
    ) -> Pool:
        return await self._create(
            Pool, "pools", id=pool_id, name=name, reseller_id=reseller_id, merchant_id=merchant_id
        )

    async def create_number(
        self,
        e164: str,
        *,
        pool: str,
        carrier: str,
        max_channels: int,
        account: str | None = None,
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
            status=status,
        )

    async def me(self) -> Me:
        """Whose key is this, and what may it do?"""
        return _decoded(Me, await self._transport.get(f"{ROOT}/me"))

    async def health(self) -> Health:
        return _decoded(Health, await self._transport.get("/health"))

    async def _create(self, shape: type[T], what: str, **values: Any) -> T:
        return _decoded(shape, await self._transport.post(f"{ROOT}/{what}", _given(**values)))

    async def _post_until_answered(self, path: str, body: dict[str, Any]) -> Any:
        """For requests that may be carried out twice."""
        for tries in range(1, LEAD_TRIES):
            try:
                return await self._transport.post(path, body)
            except (ApiError, Unreachable) as error:
                if not is_transient(error):
                    raise
            # Full jitter, so that many clients do not come back in one moment.
            await asyncio.sleep(random.uniform(0, LEAD_FIRST_WAIT_S * 2**tries))  # noqa: S311
        return await self._transport.post(path, body)


def _given(**values: Any) -> dict[str, Any]:
    """What is left out is decided by the API."""
    return {name: value for name, value in values.items() if value is not None}


def _decoded(shape: type[T], data: Any) -> T:
    try:
        return models.decode(shape, data)
    except ValueError as error:
        raise Unreachable(f"answered with something that is not understood: {error}") from error

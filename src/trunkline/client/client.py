"""The client: one method per operation of the API.

No request is retried, with one exception: `create_lead` is idempotent by its `request_id`, so it is retried when there
was no response.
"""

from trunkline.client.calls import ROOT, decoded
from trunkline.client.campaigns import CampaignCalls, ReminderCalls
from trunkline.client.catalog import CatalogCalls
from trunkline.client.leads import LeadCalls
from trunkline.client.models import Health, Me
from trunkline.client.transport import Transport


class TrunklineClient(LeadCalls, CampaignCalls, ReminderCalls, CatalogCalls):
    """Use it as `async with`, or call `close` at the end."""

    def __init__(self, base_url: str, api_key: str, *, timeout_s: float = 10.0):
        super().__init__(Transport(base_url, api_key, timeout_s))

    async def __aenter__(self) -> "TrunklineClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def me(self) -> Me:
        """The tenant and the scopes of this client's key."""
        return decoded(Me, await self._transport.get(f"{ROOT}/me"))

    async def health(self) -> Health:
        return decoded(Health, await self._transport.get("/health"))

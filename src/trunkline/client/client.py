"""The clients: one method per operation of the API, asynchronous and synchronous.

No request is retried, with one exception: `create_lead` is idempotent by its `request_id`, so it is retried when there
was no response.
"""

from dataclasses import dataclass

from trunkline.client import campaigns, leads
from trunkline.client.decoding import decoded
from trunkline.client.models import (
    Campaign,
    CampaignProgress,
    Health,
    LeadWithAttempts,
    Me,
    Reminder,
)
from trunkline.client.operations import (
    ROOT,
    AsyncCaller,
    Key,
    Listing,
    Operation,
    SyncCaller,
    changing,
    creating,
    deleting,
    getting,
    given,
    listing,
    path,
)
from trunkline.client.transport import Transport
from trunkline.schema.numbers import NewNumber, NewPool, Number, NumberChange, Pool, PoolChange
from trunkline.schema.tenants import (
    Merchant,
    MerchantChange,
    NewMerchant,
    NewReseller,
    Reseller,
    ResellerChange,
)


async def _delete_number(api: Transport, number_id: Key, *, drain: bool = False) -> Number | None:
    """None if it was deleted; with `drain`, the draining number while it has live calls."""
    answer = await api.delete(path("numbers", number_id), given(drain="true" if drain else None))
    return None if answer is None else decoded(Number, answer)


async def _me(api: Transport) -> Me:
    """The tenant and the scopes of this client's key."""
    return decoded(Me, await api.get(f"{ROOT}/me"))


async def _health(api: Transport) -> Health:
    return decoded(Health, await api.get("/health"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _All:
    """A list without filters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MerchantFilter:
    reseller_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumberFilter:
    pool: str | None = None
    e164: str | None = None


class _Operations:
    create_lead = Operation(leads.create_lead)
    create_leads = Operation(leads.create_leads)
    upload_leads = Operation(leads.upload_leads)
    get_lead = getting(LeadWithAttempts, "leads")
    list_leads = Listing(leads.list_leads)
    update_lead = Operation(leads.update_lead)
    why = Operation(leads.why)
    dispatch_now = Operation(leads.dispatch_now)
    abort_lead = Operation(leads.abort_lead)
    abort_leads = Operation(leads.abort_leads)
    reopen_lead = Operation(leads.reopen_lead)
    reopen_leads = Operation(leads.reopen_leads)

    create_campaign = Operation(campaigns.create_campaign)
    get_campaign = getting(Campaign, "campaigns")
    list_campaigns = Listing(campaigns.list_campaigns)
    upload_campaign = Operation(campaigns.upload_campaign)
    start_campaign = Operation(campaigns.start_campaign)
    pause_campaign = Operation(campaigns.pause_campaign)
    resume_campaign = Operation(campaigns.resume_campaign)
    stop_campaign = Operation(campaigns.stop_campaign)
    campaign_progress = getting(CampaignProgress, "campaigns", "progress")

    create_reminder = Operation(campaigns.create_reminder)
    get_reminder = getting(Reminder, "reminders")
    list_occurrences = Listing(campaigns.list_occurrences)
    ring_next = Operation(campaigns.ring_next)
    pause_reminder = Operation(campaigns.pause_reminder)
    resume_reminder = Operation(campaigns.resume_reminder)
    skip_occurrence = Operation(campaigns.skip_occurrence)
    cancel_reminder = Operation(campaigns.cancel_reminder)

    create_reseller = creating(NewReseller, Reseller, "resellers")
    get_reseller = getting(Reseller, "resellers")
    list_resellers = listing(Reseller, "resellers", _All)
    update_reseller = changing(ResellerChange, Reseller, "resellers")
    delete_reseller = deleting("resellers")

    create_merchant = creating(NewMerchant, Merchant, "merchants")
    get_merchant = getting(Merchant, "merchants")
    list_merchants = listing(Merchant, "merchants", _MerchantFilter)
    update_merchant = changing(MerchantChange, Merchant, "merchants")
    delete_merchant = deleting("merchants")

    create_pool = creating(NewPool, Pool, "pools")
    get_pool = getting(Pool, "pools")
    list_pools = listing(Pool, "pools", _All)
    update_pool = changing(PoolChange, Pool, "pools")
    delete_pool = deleting("pools")

    create_number = creating(NewNumber, Number, "numbers")
    get_number = getting(Number, "numbers")
    list_numbers = listing(Number, "numbers", _NumberFilter)
    update_number = changing(NumberChange, Number, "numbers")
    delete_number = Operation(_delete_number)

    me = Operation(_me)
    health = Operation(_health)


class TrunklineClient(AsyncCaller, _Operations):
    """Use it as `async with`, or call `close` at the end."""

    def __init__(self, base_url: str, api_key: str, *, timeout_s: float = 10.0):
        super().__init__(Transport(base_url, api_key, timeout_s))

    async def __aenter__(self) -> "TrunklineClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class SyncTrunklineClient(SyncCaller, _Operations):
    """The same methods without `await`. Use it as `with`, or call `close` at the end. Thread-safe."""

    def __init__(self, base_url: str, api_key: str, *, timeout_s: float = 10.0):
        super().__init__(Transport(base_url, api_key, timeout_s))

    def __enter__(self) -> "SyncTrunklineClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

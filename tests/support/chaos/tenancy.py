"""Who lives in the installation under test: the same tenants, numbers and accounts in every run.

They are entered once, by the API, into a database that every run gets a copy of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import asyncpg

from tests.support.chaos import application
from tests.support.world import ADMIN_KEY
from trunkline.client import TrunklineClient
from trunkline.telephony.simulator.config import ACCOUNTS, CarrierName

RESELLER = "acme"
# Agents of our own take the calls of these two; `vapi` has agents at the carrier.
SHOP, CLINIC, ASSISTED = "shop", "clinic", "assisted"
MERCHANTS = (SHOP, CLINIC, ASSISTED)
POOL, INBOUND_POOL, ASSISTED_POOL, SPARE_POOL = "main", "inbound", "assisted", "spare"
# Number: carrier, pool, channels.
NUMBERS: Mapping[str, tuple[CarrierName, str, int]] = {
    "+14155550101": ("twilio", POOL, 6),
    "+14155550102": ("plivo", POOL, 5),
    "+14155550103": ("exotel", POOL, 4),
    "+14155550104": ("twilio", SPARE_POOL, 4),
    "+14155550105": ("vapi", ASSISTED_POOL, 4),
    "+14155550111": ("twilio", INBOUND_POOL, 6),
    "+14155550112": ("plivo", INBOUND_POOL, 6),
}
INBOUND = ("+14155550111", "+14155550112")
EXOTEL_FLOW = "chaos-flow"
STARTS_PER_S = 60.0
PLATFORM_POLICY: Mapping[str, Any] = {"retries": {"base_s": 1, "factor": 1}}
# In its own day. Some of its leads wait for tomorrow.
CLINIC_ATTEMPTS_PER_DAY = 25
CLINIC_POLICY: Mapping[str, Any] = {"attempts_per_day": CLINIC_ATTEMPTS_PER_DAY}
# Of every campaign.
CAMPAIGN_CONCURRENT_MAX, CAMPAIGN_STARTS_PER_S = 3, 4.0
CAMPAIGN_POLICY: Mapping[str, Any] = {
    "max_concurrent": CAMPAIGN_CONCURRENT_MAX,
    "starts_per_s": CAMPAIGN_STARTS_PER_S,
}
# Open for a minute that is over, or far away: nobody of such a campaign is called.
CLOSED_POLICY: Mapping[str, Any] = {"windows": [{"spans": [{"start": "03:00", "end": "03:01"}]}]}
CREDENTIALS: Mapping[CarrierName, Mapping[str, str]] = {
    "twilio": {"account_sid": ACCOUNTS[0].sid, "auth_token": ACCOUNTS[0].auth_token},
    "plivo": {"auth_id": ACCOUNTS[1].sid, "auth_token": ACCOUNTS[1].auth_token},
    "exotel": {
        "sid": ACCOUNTS[2].sid,
        "api_key": ACCOUNTS[2].api_key,
        "api_token": ACCOUNTS[2].auth_token,
        "app_id": EXOTEL_FLOW,
    },
    "vapi": {
        "api_key": ACCOUNTS[3].auth_token,
        "webhook_secret": "a-secret-of-vapi-for-tests",
        "assistant_id": "assistant",
    },
}
# Every move of an attempt and of a lead, in the order in which Postgres wrote it; and what hurried tests need.
_WATCH = """
CREATE TABLE seen_moves (
    no bigserial, attempt_id uuid, lead_id uuid, before text, after text, at timestamptz DEFAULT clock_timestamp()
);
CREATE FUNCTION note_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO seen_moves (attempt_id, lead_id, before, after)
    VALUES (NEW.id, NEW.lead_id, CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END, NEW.state);
    RETURN NULL;
END $$;
CREATE TRIGGER note_new AFTER INSERT ON attempts FOR EACH ROW EXECUTE FUNCTION note_move();
CREATE TRIGGER note_move AFTER UPDATE ON attempts FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION note_move();
CREATE TABLE seen_statuses (
    no bigserial, lead_id uuid, before text, after text, at timestamptz DEFAULT clock_timestamp()
);
CREATE FUNCTION note_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO seen_statuses (lead_id, before, after) VALUES (NEW.id, OLD.status, NEW.status);
    RETURN NULL;
END $$;
CREATE TRIGGER note_status AFTER UPDATE ON leads FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status) EXECUTE FUNCTION note_status();
-- A merchant whose people find no agent dials one at a time at once, not after five minutes.
CREATE FUNCTION stop_no_longer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.stops_until := least(NEW.stops_until, clock_timestamp());
    RETURN NEW;
END $$;
CREATE TRIGGER stop_no_longer BEFORE UPDATE ON no_agent_brakes FOR EACH ROW
    WHEN (NEW.stops_until IS NOT NULL) EXECUTE FUNCTION stop_no_longer();
"""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """What the platform answered when it was set up."""

    # By carrier, the URLs that an operator enters there.
    urls: Mapping[str, Mapping[str, str]]
    number_ids: Mapping[str, str]
    account_ids: Mapping[str, str]


async def enter(api_url: str, database_url: str, redis_url: str, carrier_url: str) -> Tenancy:
    """Everything above, by the API; then the triggers that watch."""
    urls: dict[str, dict[str, str]] = {}
    accounts: dict[str, str] = {}
    numbers: dict[str, str] = {}
    async with TrunklineClient(api_url, ADMIN_KEY) as client:
        for carrier, credentials in CREDENTIALS.items():
            account = await client.create_account(
                carrier=carrier,
                name="default",
                credentials=dict(credentials),
                base_url=carrier_url,
                starts_per_s=STARTS_PER_S,
            )
            accounts[carrier] = str(account.id)
        async with _session(api_url) as session:
            for name, account_id in accounts.items():
                async with session.get(f"/api/v1/accounts/{account_id}/urls") as answer:
                    urls[name] = await answer.json()
        await client.create_reseller(RESELLER, "Acme")
        for pool in (POOL, INBOUND_POOL, ASSISTED_POOL, SPARE_POOL):
            await client.create_pool(pool, pool, reseller_id=RESELLER)
        for merchant in MERCHANTS:
            await client.create_merchant(
                merchant,
                merchant,
                reseller_id=RESELLER,
                default_region="US",
                default_pool=ASSISTED_POOL if merchant == ASSISTED else POOL,
            )
        for e164, (carrier, pool, channels) in NUMBERS.items():
            number = await client.create_number(e164, pool=pool, carrier=carrier, max_channels=channels)
            numbers[e164] = str(number.id)
        async with _session(api_url) as session:
            for e164 in INBOUND:
                await _put(
                    session,
                    f"/api/v1/numbers/{numbers[e164]}/inbound",
                    {"admits": "everybody", "merchant_id": SHOP},
                )
            await _put(session, "/api/v1/policy", PLATFORM_POLICY)
            await _put(session, f"/api/v1/merchants/{CLINIC}/policy", CLINIC_POLICY)
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(_WATCH)
    finally:
        await connection.close()
    await application.prepare(database_url, redis_url)
    return Tenancy(urls, numbers, accounts)


def _session(api_url: str) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    return aiohttp.ClientSession(api_url, headers=headers, raise_for_status=True)


async def _put(session: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> None:
    async with session.put(path, json=body):
        pass

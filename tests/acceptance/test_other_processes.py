"""One process dials, another gets the webhooks: as behind any load balancer."""

from dataclasses import replace
from functools import partial

import pytest

from tests.support.api.asgi import AsgiClient
from tests.support.telephony.carriers import FROM, open_carrier_world
from tests.support.waiting import eventually
from tests.support.world import ADMIN_KEY, CARRIER, world_settings
from trunkline.app import Platform, components
from trunkline.telephony.accounts import AccountsRefresh
from trunkline.telephony.simulator import SimulatedAccount, Simulator
from trunkline.telephony.simulator.answered_calls import bad_answers, without_agent

SECOND = SimulatedAccount(sid="AC" + "0" * 31 + "2", auth_token="another-token")


async def test_a_webhook_of_a_new_account_is_answered_by_a_process_that_has_not_read_it_yet(
    database_url: str, redis_url: str, key_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of its readings of the accounts, the other process does not know whose webhooks these are."""
    monkeypatch.setattr(components, "AccountsRefresh", partial(AccountsRefresh, interval_s=3600.0))
    async with Simulator(CARRIER) as unused:
        settings = world_settings(
            database_url, redis_url, key_prefix, unused, TRUNKLINE_ROLES="api", POD_NAME="other"
        )
        async with Platform.open(settings) as other:
            config = replace(CARRIER, accounts=(*CARRIER.accounts, SECOND))
            async with open_carrier_world(
                database_url, redis_url, key_prefix, config=config, PUBLIC_BASE_URL=other.base_url
            ) as world:
                api = AsgiClient(world.platform.http.api, ADMIN_KEY)
                body = {
                    "carrier": "twilio",
                    "name": "second",
                    "credentials": {"account_sid": SECOND.sid, "auth_token": SECOND.auth_token},
                    "base_url": world.carrier.base_url,
                    "starts_per_s": 1000,
                }
                made = await api.post("/api/v1/accounts", body)
                assert made.status == 201, made.body
                await world.client.create_number(
                    FROM, pool="p", carrier="twilio", account="second", max_channels=1
                )
                lead = await world.client.create_lead(merchant_id="m", phone="+15005551000")
                await world.finished(lead.id)
                answered = world.carrier.ledger.answered
                assert [one.statuses for call in answered for one in call.documents] == [[200]]
                assert (bad_answers(answered), without_agent(answered)) == (0, [])


async def test_the_fallback_base_url_connects_a_call_when_the_public_one_is_unreachable(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    async with Simulator(CARRIER) as unused:
        settings = world_settings(
            database_url, redis_url, key_prefix, unused, TRUNKLINE_ROLES="api", POD_NAME="other"
        )
        async with (
            Platform.open(settings) as other,
            open_carrier_world(
                database_url,
                redis_url,
                key_prefix,
                PUBLIC_BASE_URL="http://127.0.0.1:1",
                FALLBACK_BASE_URL=other.base_url,
            ) as world,
        ):
            await world.client.create_number(FROM, pool="p", carrier="twilio", max_channels=1)
            await world.client.create_lead(merchant_id="m", phone="+15005551000")
            ledger = world.carrier.ledger
            await eventually(lambda: any(call.ended_at for call in ledger.answered), timeout_s=20)
            (call,) = ledger.answered
            assert [(one.statuses, one.is_fallback) for one in call.documents[:2]] == [
                ([0, 0, 0], False),
                ([200], True),
            ]
            assert call.agent_at is not None
            assert bad_answers([call]) == 0

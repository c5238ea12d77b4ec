"""Somebody who was dialled without an agent answers, and none is free: how long they may wait, and what they hear."""

from trunkline.dispatch.policies import Owner, Policies
from trunkline.leads.calling_policy import resolve
from trunkline.store.attempts import CallOwner
from trunkline.store.database import Connection
from trunkline.value import Value


class Told(Value, frozen=True):
    message: str
    wait_max_s: float


async def told(conn: Connection, policies: Policies, call: CallOwner) -> Told:
    """By the policy of the call, or the strictest there is if it cannot be read."""
    owner = Owner(call.reseller_id, call.merchant_id, call.campaign_id)
    policy = (await policies.of(conn, [owner]))[owner] or resolve()
    message = policy.message_on_abandonment(call.to_phone, caller=call.merchant_name, number=call.from_phone)
    return Told(message, policy.abandon_threshold_s)

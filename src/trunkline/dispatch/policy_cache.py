"""Calling policies for the dial: all layers of a lead resolved, read from Postgres at most a second ago."""

import time
from collections.abc import Iterable
from itertools import chain
from typing import Protocol, TypeAlias
from uuid import UUID

from pydantic import ValidationError

from trunkline.leads.calling_policy import EMPTY, CallingPolicy, Effective, resolve
from trunkline.leads.retries import DEFAULT, Retries
from trunkline.store import policy
from trunkline.store.attempts import CallOwner
from trunkline.store.database import Connection
from trunkline.store.policy import PolicyKey
from trunkline.telemetry import get_logger
from trunkline.value import Value

log = get_logger(__name__)

FRESH_S = 1.0
# More layers than any process dials for at a time; beyond it the cache is emptied.
LAYERS_MAX = 50_000
# reseller, merchant, campaign
Owner: TypeAlias = tuple[str, str, UUID | None]
# In place of a policy with an unreadable layer. No lead is called under it; calls that were placed are settled by its
# default rules.
UNREADABLE = resolve()


class PolicySubject(Protocol):
    """A lead, a flow or a call: the policies of its owners apply to it."""

    @property
    def reseller_id(self) -> str: ...

    @property
    def merchant_id(self) -> str: ...

    @property
    def campaign_id(self) -> UUID | None: ...


def layers_of(reseller_id: str, merchant_id: str, campaign_id: UUID | None) -> tuple[PolicyKey, ...]:
    return (
        PolicyKey("platform", ""),
        PolicyKey("reseller", reseller_id),
        PolicyKey("merchant", merchant_id),
        *([campaign_key(merchant_id, campaign_id)] if campaign_id else []),
    )


def campaign_key(merchant_id: str, campaign_id: UUID) -> PolicyKey:
    return PolicyKey("campaign", f"{merchant_id}/{campaign_id}")


class Abandonment(Value, frozen=True):
    """For an abandoned call: how long the person may wait for an agent, and the message that is played then."""

    message: str
    wait_max_s: float


class _Layer(Value, frozen=True):
    """A layer as it was read. An unreadable one has no policy."""

    version: int
    policy: CallingPolicy | None


class Policies:
    def __init__(self, fresh_s: float = FRESH_S, usual_retries: Retries = DEFAULT):
        self._fresh_s = fresh_s
        self._usual_retries = usual_retries
        self._layers: dict[PolicyKey, _Layer] = {}
        # By owner, with the time at which its layers were read; and by the versions of these layers.
        self._known: dict[Owner, tuple[Effective, float]] = {}
        self._resolved: dict[tuple[tuple[str, str, int], ...], Effective] = {}

    async def on_abandonment(self, conn: Connection, call: CallOwner) -> Abandonment:
        """By the policy of the call, or the strictest defaults if it cannot be read."""
        (effective,) = await self.of(conn, [call])
        message = effective.message_on_abandonment(
            call.to_phone, caller=call.merchant_name, number=call.from_phone
        )
        return Abandonment(message, effective.abandon_threshold_s)

    async def of(self, conn: Connection, owned: Iterable[PolicySubject]) -> list[Effective]:
        """One for each, in their order. `UNREADABLE` where a layer cannot be read: no call is better than one against
        its rules."""
        if len(self._layers) > LAYERS_MAX:
            # Replaced, not emptied: a reader that waits for Postgres goes on with what it had.
            self._layers, self._known, self._resolved = {}, {}, {}
        oldest_s, known, owners = time.monotonic() - self._fresh_s, self._known, []
        stale: set[Owner] = set()
        for each in owned:
            owner = (each.reseller_id, each.merchant_id, each.campaign_id)
            owners.append(owner)
            if owner not in known or known[owner][1] <= oldest_s:
                stale.add(owner)
        if stale:
            known |= await self._read(conn, stale)
        return [known[owner][0] for owner in owners]

    async def _read(self, conn: Connection, stale: Iterable[Owner]) -> dict[Owner, tuple[Effective, float]]:
        read_at_s, layers = time.monotonic(), {owner: layers_of(*owner) for owner in stale}
        keys = list(set(chain.from_iterable(layers.values())))
        rows = {row.key: row for row in await policy.read(conn, keys)}
        for key in keys:
            row, known = rows.get(key), self._layers.get(key)
            version = row.version if row else 0
            if known is None or known.version != version:
                self._layers[key] = _Layer(version, _parsed(key, row.policy) if row else EMPTY)
        return {owner: (self._effective(each), read_at_s) for owner, each in layers.items()}

    def _effective(self, keys: tuple[PolicyKey, ...]) -> Effective:
        versions, policies = [], []
        for key in keys:
            layer = self._layers[key]
            versions.append((*key, layer.version))
            if layer.policy is None:
                return UNREADABLE
            policies.append(layer.policy)
        known = self._resolved.get(tuple(versions))
        if known is None:
            known = self._resolved[tuple(versions)] = resolve(*policies, usual_retries=self._usual_retries)
        return known


def _parsed(key: PolicyKey, document: object) -> CallingPolicy | None:
    try:
        return CallingPolicy.model_validate(document)
    except ValidationError as error:
        log.error("policy.unreadable", scope=key.scope, subject=key.subject, problems=error.error_count())
        return None

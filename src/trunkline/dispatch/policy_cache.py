"""Calling policies for the dial: all layers of a lead resolved, read from Postgres at most a second ago."""

import time
from collections.abc import Iterable
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


class Owner(Value, frozen=True):
    """The owner whose policy applies."""

    reseller_id: str
    merchant_id: str
    campaign_id: UUID | None = None

    def layers(self) -> tuple[PolicyKey, ...]:
        return (
            PolicyKey("platform", ""),
            PolicyKey("reseller", self.reseller_id),
            PolicyKey("merchant", self.merchant_id),
            *([campaign_key(self.merchant_id, self.campaign_id)] if self.campaign_id else []),
        )


def campaign_key(merchant_id: str, campaign_id: UUID) -> PolicyKey:
    return PolicyKey("campaign", f"{merchant_id}/{campaign_id}")


class Abandonment(Value, frozen=True):
    """For an abandoned call: how long the person may wait for an agent, and the message that is played then."""

    message: str
    wait_max_s: float


class _Layer(Value, frozen=True):
    """A layer as it was read. An unreadable one has no policy, and no lead is called under it."""

    version: int
    policy: CallingPolicy | None
    read_at_s: float


class Policies:
    def __init__(self, fresh_s: float = FRESH_S, usual_retries: Retries = DEFAULT):
        self._fresh_s = fresh_s
        self._usual_retries = usual_retries
        self._layers: dict[PolicyKey, _Layer] = {}
        self._resolved: dict[tuple[tuple[PolicyKey, int], ...], Effective] = {}

    async def on_abandonment(self, conn: Connection, call: CallOwner) -> Abandonment:
        """By the policy of the call, or the strictest defaults if it cannot be read."""
        owner = Owner(call.reseller_id, call.merchant_id, call.campaign_id)
        effective = (await self.of(conn, [owner]))[owner] or resolve()
        message = effective.message_on_abandonment(
            call.to_phone, caller=call.merchant_name, number=call.from_phone
        )
        return Abandonment(message, effective.abandon_threshold_s)

    async def of(self, conn: Connection, owners: Iterable[Owner]) -> dict[Owner, Effective | None]:
        """None for an owner with an unreadable layer: no call is better than one against its rules."""
        unique_owners = set(owners)
        await self._refresh(conn, {key for owner in unique_owners for key in owner.layers()})
        return {owner: self._effective(owner.layers()) for owner in unique_owners}

    async def _refresh(self, conn: Connection, keys: set[PolicyKey]) -> None:
        now_s = time.monotonic()
        old = [key for key in keys if not self._is_fresh(key, now_s)]
        if not old:
            return
        if len(self._layers) > LAYERS_MAX:
            self._layers.clear()
            self._resolved.clear()
        rows = {row.key: row for row in await policy.read(conn, old)}
        for key in old:
            row = rows.get(key)
            version = row.version if row else 0
            known = self._layers.get(key)
            if known is not None and known.version == version:
                parsed = known.policy
            else:
                parsed = _parsed(key, row.policy) if row else EMPTY
            self._layers[key] = _Layer(version, parsed, now_s)

    def _is_fresh(self, key: PolicyKey, now_s: float) -> bool:
        layer = self._layers.get(key)
        return layer is not None and now_s - layer.read_at_s < self._fresh_s

    def _effective(self, keys: tuple[PolicyKey, ...]) -> Effective | None:
        layers = [self._layers[key] for key in keys]
        cache_key = tuple((key, layer.version) for key, layer in zip(keys, layers, strict=True))
        known = self._resolved.get(cache_key)
        if known is None:
            policies = [layer.policy for layer in layers if layer.policy is not None]
            if len(policies) < len(layers):
                return None
            known = self._resolved[cache_key] = resolve(*policies, usual_retries=self._usual_retries)
        return known


def _parsed(key: PolicyKey, document: object) -> CallingPolicy | None:
    try:
        return CallingPolicy.model_validate(document)
    except ValidationError as error:
        log.error("policy.unreadable", scope=key.scope, subject=key.subject, problems=error.error_count())
        return None

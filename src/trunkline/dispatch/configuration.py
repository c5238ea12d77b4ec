"""The configuration of the match: numbers, weights and limits from Postgres, stops from this process's controls."""

import random
from collections.abc import Mapping
from uuid import UUID

from trunkline.bus.channels import ALL, Configuration
from trunkline.control.controls import Controls, StopTarget
from trunkline.dispatch.rollout import LEFT_OUT, Rollout
from trunkline.model import NumberLimit
from trunkline.settings.tiers import COMMON, own_tier
from trunkline.store import cooldowns, schedule
from trunkline.store.controls import Scope
from trunkline.store.database import Connection
from trunkline.value import replace

_SUBJECTS = {Scope.RESELLER: "r", Scope.MERCHANT: "m", Scope.CAMPAIGN: "c"}


async def read(conn: Connection, controls: Controls, rollout: Rollout | None = None) -> Configuration:
    numbers = await schedule.numbers(conn)
    left_out = await rollout.left_out(conn) if rollout else ()
    return Configuration(
        numbers=tuple(_allowed(limit, carrier, controls) for limit, carrier in numbers),
        weights=await schedule.weights(conn),
        caps=await schedule.caps(conn),
        stops={f"m/{merchant}": LEFT_OUT for merchant in left_out} | stops(controls),
        tiers=_own_tiers(await schedule.merchant_tiers(conn)),
        ungated=frozenset(await schedule.ungated(conn)),
        overdialled=frozenset(await schedule.overdialled(conn)),
        cooling=await cooldowns.resting(conn),
    )


def _own_tiers(configs: Mapping[str, str]) -> dict[str, str]:
    own = {merchant: own_tier(merchant, config) for merchant, config in configs.items()}
    return {merchant: tier for merchant, tier in own.items() if tier and tier not in COMMON}


def stops(controls: Controls) -> dict[str, str]:
    """By the subjects of the scripts: everything, a reseller, a merchant, a campaign."""
    if everything := controls.stopped():
        return {ALL: everything.reason}
    by_subject = {}
    for control in controls.in_force:
        kind = _SUBJECTS.get(control.scope)
        if kind and control.phase(controls.now()) == "stopped":
            by_subject[f"{kind}/{control.subject}"] = control.reason
    return by_subject


def _allowed(limit: NumberLimit, carrier: str, controls: Controls) -> NumberLimit:
    """A number that is stopped, by itself or with its carrier, gets no grants."""
    stop = controls.stopped(number_id=limit.number_id, carrier=carrier)
    is_its_own = stop is not None and stop.scope in (Scope.NUMBER, Scope.CARRIER)
    return replace(limit, max_channels=0) if is_its_own else limit


class DialStops:
    """The intent checks this: what was stopped after the match is not dialled. After a stop has ended, only a growing
    share of the calls starts. The result is stored with the lead, and its tenant reads it: it names the level at which
    calls are stopped, and not the reason that an operator above the tenant wrote."""

    def __init__(self, controls: Controls, rollout: Rollout | None = None):
        self._controls = controls
        self._rollout = rollout

    def __call__(
        self, reseller_id: str, merchant_id: str, campaign_id: UUID | None, number_id: UUID, carrier: str
    ) -> str | None:
        target: StopTarget = {
            "reseller_id": reseller_id,
            "merchant_id": merchant_id,
            "campaign_id": campaign_id,
            "number_id": number_id,
            "carrier": carrier,
        }
        if stop := self._controls.stopped(**target):
            return stop.scope
        if self._rollout and not self._rollout.includes(reseller_id, merchant_id):
            return LEFT_OUT
        share = self._controls.share(**target)
        # Not a secret: which calls of a share go first does not matter.
        return None if random.random() < share else "resuming"  # noqa: S311  no secret

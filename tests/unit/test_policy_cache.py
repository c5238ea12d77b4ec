from typing import Any, cast

import pytest

from trunkline.dispatch import policy_cache
from trunkline.dispatch.policy_cache import Policies
from trunkline.model import Flow
from trunkline.store.database import Connection

ONE, OTHER = Flow("p", "r", "m"), Flow("p", "r", "n")


class NoPolicies:
    def __init__(self) -> None:
        self.reads = 0

    async def fetch(self, *_: object) -> list[Any]:
        self.reads += 1
        return []


async def test_policies_are_read_once_for_all_stale_owners_and_not_again_while_fresh() -> None:
    conn, policies = NoPolicies(), Policies()
    assert len(await policies.of(cast(Connection, conn), [ONE, OTHER, ONE])) == 3
    assert len(await policies.of(cast(Connection, conn), [OTHER])) == 1
    assert conn.reads == 1


async def test_a_cache_that_overflows_still_answers_for_owners_that_were_fresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy_cache, "LAYERS_MAX", 1)
    conn, policies = NoPolicies(), Policies()
    await policies.of(cast(Connection, conn), [ONE])
    one, other = await policies.of(cast(Connection, conn), [ONE, OTHER])
    assert one == other

"""A process ends itself at every place the code names for it; its successor finds everything as it was left."""

from pathlib import Path

import pytest

from tests.support.crashpoints import CRASH_POINTS
from tests.support.fork_server import ForkServer
from tests.support.hurry import hurrying
from tests.support.installation import open_installation
from tests.support.promises import keeps_its_promises
from trunkline.crashpoint import EXIT_STATUS

# Which process passes a point, by the first part of its name. Those elsewhere are crashed in tests of their own.
PROCESS = {"dialer": "dialer-1", "results": "dialer-1", "inbox": "face", "mailbox": "folder"}
ELSEWHERE = frozenset({"jobs", "reminders", "router"})
# Not the first time, so that something was done before; but answers of a whole batch are written in one go.
NTH = {"results.before_write": 1}
POINTS = sorted(point for point in CRASH_POINTS if point.partition(".")[0] not in ELSEWHERE)


def test_every_component_with_crash_points_is_crashed_here_or_elsewhere() -> None:
    assert {point.partition(".")[0] for point in CRASH_POINTS} <= PROCESS.keys() | ELSEWHERE


@pytest.mark.parametrize("point", POINTS)
async def test_the_dispatch_invariants_hold_after_a_crash_at(
    point: str,
    fork_server: ForkServer,
    database_url: str,
    redis_url: str,
    key_prefix: str,
    tmp_path: Path,
) -> None:
    name = PROCESS[point.partition(".")[0]]
    others = [each for each in ("face", "folder", "control") if each != name]
    async with open_installation(
        fork_server, database_url, redis_url, tmp_path, domain=key_prefix, names=[*others, name]
    ) as place:
        # The one that will crash is alone at its work, so that it gets there.
        place.kill(name, keep_down=True)
        await place.processes[name].ended()
        doomed = place.start(name, crash_at=point, nth=NTH.get(point, 2))
        if name != "dialer-1":
            place.start("dialer-1")
        ids = await place.add_leads(20)
        assert await doomed.ended() == EXIT_STATUS
        async with hurrying(place, settled_s=2.5):
            await keeps_its_promises(place, ids)

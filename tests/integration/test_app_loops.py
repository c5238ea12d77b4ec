"""The table of loops: what only the leader does is under `leader`, and the documents show the same table."""

import re
from pathlib import Path

from trunkline.app import Platform
from trunkline.loops.leader import LeaderLoop
from trunkline.settings import load_settings

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"


async def test_the_documented_table_of_loops_matches_the_platform(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    settings = load_settings(
        {},
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        TRUNKLINE_DOMAIN=key_prefix,
        ROUTER_KEY_PREFIX=key_prefix,
        TRUNKLINE_ROLES="api",
        TRUNKLINE_SECRET_KEY="k" * 40,
        LEADER_ELECTION_ENABLED="true",
        HTTP_PORT=0,
        METRICS_PORT=0,
    )
    async with Platform.open(settings) as platform:
        table = {
            role: (
                [type(loop).__name__ for loop in loops.every],
                [type(loop).__name__ for loop in loops.leader],
            )
            for role, loops in platform.loops_by_role.items()
        }
        unguarded = [
            loop
            for loops in platform.loops_by_role.values()
            for loop in loops.every
            if isinstance(loop, LeaderLoop)
        ]
    assert unguarded == []
    assert table == documented()


async def test_control_elects_a_leader_while_the_routers_election_is_disabled(
    database_url: str, redis_url: str, key_prefix: str
) -> None:
    settings = load_settings(
        {},
        DATABASE_URL=database_url,
        REDIS_URL=redis_url,
        TRUNKLINE_DOMAIN=key_prefix,
        ROUTER_KEY_PREFIX=key_prefix,
        TRUNKLINE_ROLES="api",
        TRUNKLINE_SECRET_KEY="k" * 40,
        LEADER_ELECTION_ENABLED="false",
        HTTP_PORT=0,
        METRICS_PORT=0,
    )
    async with Platform.open(settings) as platform:
        electing = {
            role: [loop.name for loop in loops.every if "leadership" in loop.name]
            for role, loops in platform.loops_by_role.items()
            if role in ("control", "router")
        }
        await platform.router.manager.run_once()
        assert platform.router.manager.is_leader
    assert electing == {"control": ["leadership"], "router": []}


def test_every_documented_loop_links_to_its_file() -> None:
    without = [
        name
        for _, name, file in table_rows()
        if f"class {name}(" not in (PAGE.parent / file).read_text(encoding="utf-8")
    ]
    assert without == []


def documented() -> dict[str, tuple[list[str], list[str]]]:
    table: dict[str, tuple[list[str], list[str]]] = {}
    for cell, name, _ in table_rows():
        role, _, leader = cell.partition(", ")
        assert leader in ("", "leader")
        table.setdefault(role.strip("`"), ([], []))[bool(leader)].append(name)
    return table


def table_rows() -> list[tuple[str, str, str]]:
    """Role, loop and file of each row."""
    section = PAGE.read_text(encoding="utf-8").split("## Roles and loops")[1].split("## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    rows = [re.fullmatch(r"\| (.+?) \| \[`(\w+)`\]\((.+?)\) \| .+ \|", line) for line in lines]
    assert rows
    assert all(rows)
    return [(row[1], row[2], row[3]) for row in rows if row]

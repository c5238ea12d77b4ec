"""Campaigns in the console: how far each is, and what was wrong with the rows of a file."""

import re
from collections.abc import AsyncIterator

import pytest

from tests.support.api.world import ADMIN_KEY, expect
from tests.support.console.world import ConsoleWorld, Visitor, open_console

ROOT = "/api/v1/campaigns"


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ConsoleWorld]:
    async with open_console(database_url) as world:
        yield world


async def make(world: ConsoleWorld, name: str) -> str:
    made = expect(await world.api.tenant("a1", "leads").post(ROOT, {"name": name}), 201)
    return str(made["id"])


async def upload(visitor: Visitor, campaign: str, body: str) -> str:
    page = (await visitor.open(f"/console/campaigns/{campaign}")).body.decode()
    token = page.partition('data-token="')[2].partition('"')[0]
    answer = await visitor.client.request(
        "POST",
        f"/console/upload/campaigns/{campaign}",
        body=body.encode(),
        query={"file": "people.csv"},
        headers=visitor.headers() | {"x-form-token": token},
    )
    assert answer.status == 200
    return answer.body.decode()


def rows(page: str) -> list[str]:
    """Of the body of its table, as plain words."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        " ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in re.findall(r"<tr>.*?</tr>", body, re.DOTALL)
    ]


async def test_the_list_shows_the_progress_of_each_campaign(world: ConsoleWorld) -> None:
    visitor = await world.visitor(ADMIN_KEY)
    begun, empty = await make(world, "Renewals"), await make(world, "Nobody yet")
    await upload(visitor, begun, "phone\n" + "".join(f"+1415555010{n}\n" for n in range(4)))
    async with world.api.database.connection() as conn:
        await conn.execute(
            "UPDATE leads SET status = 'FINISHED', outcome = 'ANSWERED', finished_at = now()"
            " WHERE id IN (SELECT id FROM leads LIMIT 3)"
        )
    listed = expect(await world.api.admin.get(ROOT), 200)["items"]
    assert {each["id"]: (each["finished"], each["leads"]) for each in listed} == {
        begun: (3, 4),
        empty: (0, 0),
    }
    newest, oldest = rows((await visitor.open("/console/campaigns")).body.decode())
    assert "no leads" in newest
    assert "3 of 4" in oldest


async def test_rows_refused_for_the_same_reason_are_shown_in_one_line(world: ConsoleWorld) -> None:
    visitor, campaign = await world.visitor(ADMIN_KEY), await make(world, "Renewals")
    people = "".join(f"Ada {n},+1415555{n:04d},Oakland\n" for n in range(32))
    report = await upload(visitor, campaign, f"Customer Name,Mobile,City\n{people}")
    assert "0 new leads" in report
    [only] = rows(report)
    assert only.startswith("32 refused phone: Give the phone to call")
    assert "1, 2, 3, 4, 5 and 27 more" in only

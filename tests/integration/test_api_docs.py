import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.api.world import ApiWorld, open_api

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
HEADING = re.compile(r"^### `(?P<method>[A-Z]+) (?P<path>/\S*)`$", re.MULTILINE)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[ApiWorld]:
    async with open_api(database_url, populate=False) as world:
        yield world


async def test_every_documented_route_has_an_example() -> None:
    sections = HEADING.split(DOCS.read_text(encoding="utf-8"))[1:]
    for method, path, text in zip(*[iter(sections)] * 3, strict=True):
        own_text = text.split("\n## ")[0]
        assert "```" in own_text, f"{method} {path}"
        assert f"{method} {path.split('{')[0]}" in own_text, f"{method} {path} is not in its example"


async def test_every_error_code_is_explained(world: ApiWorld) -> None:
    source = Path(__file__).parents[2] / "src" / "trunkline" / "api"
    text = "\n".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    codes = set(re.findall(r'ApiError\(\s*\d+,\s*"([a-z_]+)"', text))
    codes |= set(re.findall(r'(?:conflict|forbidden)\(\s*"([a-z_]+)"', text))
    codes |= set(re.findall(r'\d+: \("([a-z_]+)"', text))
    assert len(codes) > 15
    page = DOCS.read_text(encoding="utf-8")
    assert {code for code in codes if f"`{code}`" not in page} == set()


async def test_every_operation_has_words_and_every_body_an_example(world: ApiWorld) -> None:
    document = world.app.openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], f"{method} {path}"
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if content is not None and "example" not in content:
                name = content["schema"]["$ref"].rpartition("/")[2]
                assert document["components"]["schemas"][name]["examples"], f"{method} {path}"


async def test_the_page_for_people_loads_nothing_from_elsewhere(world: ApiWorld) -> None:
    answer = await world.anybody.get("/docs")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert re.findall(rb"https?://|src=|@import|url\(", answer.body) == []
    assert (await world.anybody.get("/openapi.json")).status == 200

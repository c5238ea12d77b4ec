"""The shape of the code: a query has a reason and a user; a script a header and a twin; links lead somewhere."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from trunkline.bus.scripts import script
from trunkline.store.sql import blocks

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trunkline"
FOLDER = SOURCE / "store" / "queries"
QUERIES = {
    f"{path.stem}/{name}": text
    for path in sorted(FOLDER.glob("*.sql"))
    for name, text in blocks(path.stem).items()
}
SCRIPTS = sorted((SOURCE / "bus" / "lua").glob("*.lua"))
PYTHON = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def _named(text: str) -> set[str]:
    """The queries that a module names: attributes of its areas, and paths."""
    areas = re.findall(r'^(\w+) = Area\("(\w+)"\)', text, re.MULTILINE)
    attributes = {f"{area}/{name}" for its, area in areas for name in re.findall(rf"\b{its}\.(\w+)", text)}
    assert not [name for name in attributes if re.search(r"\{\w+\}", QUERIES.get(name, ""))], "it has places"
    return attributes | set(re.findall(r'\bquery\("([\w/]+)"', text))


def users(call: str) -> list[str]:
    return [str(path.relative_to(SOURCE)) for path, text in PYTHON.items() if call in text]


def test_an_area_of_queries_is_one_file() -> None:
    assert [str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*/*.sql")] == []


NAMED = {name for text in PYTHON.values() for name in _named(text)}


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_says_why_and_is_used(name: str) -> None:
    assert QUERIES[name].startswith("-- "), "a comment says why it is as it is"
    assert name in NAMED, f"nobody uses {name}"


def test_every_query_that_is_named_exists() -> None:
    assert QUERIES.keys() >= NAMED


CHANGES = [name for name, text in QUERIES.items() if re.search(r"^[^-]*UPDATE leads\b", text, re.MULTILINE)]


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_a_lead_raises_its_version(name: str) -> None:
    """Else an older entry or grant in Valkey would pass for the lead as it is now."""
    changes = re.findall(r"UPDATE leads\b.*?\bWHERE\b", QUERIES[name], re.DOTALL)
    assert changes
    for change in changes:
        assert re.search(r"\bversion\s*=\s*(CASE\b.*)?(\w\.)?version \+ 1", change), change


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_lists_its_arguments_and_has_one_twin(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#!lua"), "the server then knows that keys are declared"
    header = text.split("\n\n")[0] if "\n\n" in text else text
    assert "-- KEYS[1]" in header
    assert "-- ->" in header
    found = users(f'script("{path.stem}")')
    assert len(found) == 1, f"{path.stem} is called by {found}"
    assert found[0].startswith("bus/")


KEYS_INCLUDE = (SOURCE / "bus" / "lua" / "includes" / "keys.lua").read_text(encoding="utf-8")
LISTED = {
    re.split(r":<|:$", word)[0]
    for line in re.findall(r"^--   (.*)$", KEYS_INCLUDE, re.MULTILINE)
    for word in line.split()
}
LUA = sorted((SOURCE / "bus" / "lua").rglob("*.lua"))


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.stem)
def test_a_key_is_built_by_one_include_and_listed_there(path: Path) -> None:
    code = re.sub(r"--.*", "", path.read_text(encoding="utf-8"))
    assert set(re.findall(r"\bkey\('([\w:]+)'", code)) <= LISTED
    if path.stem != "keys":
        assert "ARGV[1] .." not in code, "only the include puts the prefix before a name"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_declares_every_key_that_is_known_before_it_runs(path: Path) -> None:
    lua = script(path.stem)
    assert not re.search(r"\bkey\('[\w:]+'\)", lua.source)
    of_header = {int(n) for n in re.findall(r"KEYS\[(\d+)\]", path.read_text(encoding="utf-8"))}
    declared = lua.declared([f"header {n}" for n in sorted(of_header)], ["prefix:"])
    used = {int(n) for n in re.findall(r"KEYS\[(\d+)\]", lua.source)}
    assert used == set(range(1, len(declared) + 1))
    assert set(declared[len(of_header) :]) == {f"prefix:{name}" for name in lua.names}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_declares_the_keys_of_what_its_arguments_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = re.findall(r"^-- @keys ARGV\[(\d+)(?:\.\.)?\].*?: (.+)$", text, re.MULTILINE)
    declared = {(int(n), name) for n, names in lines for name in names.split()}
    assert {name.split(":<>")[0] for _, name in declared} <= LISTED
    bound = {
        local: int(found[1])
        for names, values in re.findall(r"^local ([\w, ]+) = (ARGV.*)$", text, re.MULTILINE)
        for local, value in zip(names.split(", "), values.split(", "), strict=False)
        if (found := re.fullmatch(r"ARGV\[(\d+)\]", value))
    }
    bound |= {f"ARGV[{n}]": n for n in range(1, 20)}
    used = {
        (bound[whose], name)
        for name, whose in re.findall(r"key\('([\w:]+)', ([\w\[\]]+)\)", text)
        if whose in bound
    }
    assert used <= declared


def test_a_script_declares_the_keys_of_every_argument_that_its_header_names() -> None:
    """As `router_ended`: a call, how long, another call."""
    lua = script("router_ended")
    sent = ["p:", "run id", "epoch", "term", "a", 5, "b", 6, "a", 7]
    assert lua.declared(["p:epoch"], sent)[1 + len(lua.names) :] == ["p:ended:a", "p:ended:b"]
    flows = script("mend_flows")
    declared = flows.declared(["epoch", "bell"], ["p:", "1@", "pool/r/m/"])
    assert declared[2 + len(flows.names) :] == ["p:flow:pool/r/m/:s", "p:flow:pool/r/m/:w"]
    freed = script("router_release").declared(["p:epoch"], ["p:", "run id", "call", "", 60, ""])
    assert not [each for each in freed if each.startswith("p:pod:") and each.endswith(":")]


def test_a_key_is_built_by_one_module() -> None:
    found = {str(path.relative_to(SOURCE)): composed_keys(text) for path, text in PYTHON.items()}
    assert {path: keys for path, keys in found.items() if keys} == {}


@pytest.mark.parametrize(
    "source",
    [
        'f"{bus.projection}leads"',
        'f"{projection}leads"',
        'f"{self._bus.keys.projection(epoch)}flow:{flow}:s"',
        'bus.projection + "leads"',
        'f"{keys.base}pool"',
        'f"{self._keys.prefix}:pool"',
        'world.router_keys.prefix + ":pool"',
    ],
)
def test_a_key_that_is_built_elsewhere_is_found(source: str) -> None:
    assert composed_keys(source) == [source]


@pytest.mark.parametrize(
    "source", ["bus.projection.leads", 'f"{count} of {keys.base_url}"', "keys.available(tier)"]
)
def test_a_key_that_is_asked_for_is_not_taken_for_one_that_is_built(source: str) -> None:
    assert composed_keys(source) == []


def composed_keys(source: str) -> list[str]:
    """What puts a name behind the prefix of our keys: in an f-string, or by adding to it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [each.value for each in node.values if isinstance(each, ast.FormattedValue)]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [node.left, node.right]
        else:
            continue
        if any(map(is_key_prefix, parts)):
            found.append(ast.get_source_segment(source, node) or ast.unparse(node))
    return found


def is_key_prefix(node: ast.expr) -> bool:
    """`….projection`, `….projection(epoch)`, `projection`; `base` and `prefix` of anybody's `keys`."""
    written = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    return bool(re.search(r"(^|\.)projection$|keys\.(base|prefix)$", written))


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/**/*.md")), ids=lambda p: p.name
)
def test_links_of_the_documentation_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'\bsrc="([^"]+)"', text)
    targets = [target.split("#")[0] for target in found]
    local = [target for target in targets if target and not target.startswith(("http://", "https://"))]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_drawing_of_the_layers_is_the_contract() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    [contract] = [each for each in contracts if each["type"] == "layers"]
    assert contract["exhaustive"] is True
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    drawing = page.split("## Layers")[1].split("```")[1].strip().splitlines()
    assert drawing == contract["layers"]


def test_product_code_has_no_unfinished_ends() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX)\b")
    assert [str(path) for path, text in PYTHON.items() if marks.search(text)] == []

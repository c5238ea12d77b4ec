"""Private names are private: of what we depend on, only the public interface is used, in the product and in the tests.

A release may change a private name without a word, and the versions that pyproject.toml allows are many.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = {"trunkline", "tests", "bench", "examples"}
# Public, whatever they begin with: the documentation of Python or of the library names them.
DOCUMENTED = {
    *("_replace", "_asdict", "_fields", "_make"),  # named tuples
    *("os._exit", "sys._current_frames", "sys._getframe", "asyncio._unregister_task"),
    "created._from",  # a call of Twilio's SDK: `from` is a keyword
}
# Beside `self` and `cls`, the product touches private names of these alone: what makes an object fills it in.
FILLED_IN = {
    ("src/trunkline/settings/reading.py", "settings._given"),
    ("src/trunkline/settings/reading.py", "settings._warnings"),
}
BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_private(name: str) -> bool:
    return name.startswith("_") and name != "_" and not (name.startswith("__") and name.endswith("__"))


@dataclass(frozen=True)
class Defined:
    """What our files define, and which names the classes inherit from each other."""

    names: frozenset[str]
    by_class: dict[str, set[str]]
    bases: dict[str, set[str]]

    def of_class(self, name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        """What a class of this name and those of ours that it derives from define."""
        if name in seen:
            return set()
        inherited = (self.of_class(base, seen | {name}) for base in self.bases.get(name, ()))
        return self.by_class.get(name, set()).union(*inherited)


def files() -> Iterator[Path]:
    for folder in ("src", "tests", "bench", "examples"):
        yield from sorted((ROOT / folder).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement binds. `x += 1` binds nothing: it reads what somebody else has bound."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(node, ast.AnnAssign):
        yield node.target


def bound(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, Function | ast.ClassDef):
            yield each.name
        for target in targets(each):
            if isinstance(target, ast.Name):
                yield target.id
                if target.id == "__slots__" and isinstance(each, ast.Assign):
                    slots = (each.value for each in ast.walk(each.value) if isinstance(each, ast.Constant))
                    yield from (name for name in slots if isinstance(name, str))
            elif isinstance(target, ast.Attribute) and ast.unparse(target.value) in {"self", "cls"}:
                yield target.attr


@cache
def defined() -> Defined:
    names: set[str] = set()
    by_class, bases = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for path in files():
        names.update(bound(parsed(path)))
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                by_class[node.name].update(bound(node))
                bases[node.name].update(base for base in map(last_name, node.bases) if base)
    return Defined(frozenset(names), by_class, bases)


def last_name(node: ast.expr) -> str | None:
    """`Loop` of `Loop`, `base.Loop` and `Loop[int]`."""
    if isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def foreign_modules(tree: ast.Module) -> set[str]:
    """The names under which a file knows modules, classes and functions of others."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update((a.asname or a.name).split(".")[0] for a in node.names if is_foreign(a.name))
        elif isinstance(node, ast.ImportFrom) and node.module and is_foreign(node.module):
            found.update(alias.asname or alias.name for alias in node.names)
    return found


def is_foreign(module: str) -> bool:
    return module.split(".")[0] not in OURS


def uses(tree: ast.Module) -> Iterator[tuple[int, str, str, str | None]]:
    """Every use of a private name: its line, its owner as written, the name, and the class around it."""

    def walk(node: ast.AST, around: str | None) -> Iterator[tuple[int, str, str, str | None]]:
        if isinstance(node, ast.ClassDef):
            around = node.name
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.lineno, ast.unparse(node.value), node.attr, around
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME | {"monkeypatch.setattr"}:
            match node.args:
                case [owner, ast.Constant(value=str(name)), *_] if is_private(name):
                    yield node.lineno, ast.unparse(owner), name, around
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                for use in walk(ast.parse(annotation.value, mode="eval"), around):
                    yield (node.lineno, *use[1:])  # type: ignore[attr-defined]  # whoever is annotated has a line
        for child in ast.iter_child_nodes(node):
            yield from walk(child, around)

    yield from walk(tree, None)


def foreign_private_names(tree: ast.Module) -> list[str]:
    known, foreign = defined(), foreign_modules(tree)
    found = [
        f"line {node.lineno}: from {node.module} import {alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and is_foreign(node.module)
        for alias in node.names
        if any(map(is_private, (*node.module.split("."), alias.name)))
    ]
    for line, owner, name, around in uses(tree):
        if name in DOCUMENTED or f"{owner}.{name}" in DOCUMENTED:
            continue
        if owner in {"self", "cls"} and around is not None:
            is_ours = name in known.of_class(around)
        else:
            root = owner.split(".")[0].split("(")[0].split("[")[0]
            is_ours = name in known.names and root not in foreign and not is_metric(owner)
        if not is_ours:
            found.append(f"line {line}: {owner}.{name}")
    return found


def is_metric(owner: str) -> bool:
    """The objects in `telemetry.metrics` are of prometheus_client."""
    return owner.startswith("metrics.")


@pytest.mark.parametrize("folder", ["src", "tests", "bench", "examples"])
def test_private_names_of_dependencies_are_not_used(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in files()
        if path.is_relative_to(ROOT / folder) and (names := foreign_private_names(parsed(path)))
    }
    assert found == {}


def of_others(tree: ast.Module) -> list[str]:
    """The private names that are used of anything but the object itself."""
    return [
        f"{owner}.{name}"
        for _, owner, name, _ in uses(tree)
        if owner not in {"self", "cls"} and name not in DOCUMENTED and f"{owner}.{name}" not in DOCUMENTED
    ]


def test_the_product_uses_private_names_of_self_only() -> None:
    """In tests the name of a dependency passes if a class of ours has one that is called so too; here it does not."""
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in files()
        if path.is_relative_to(ROOT / "src")
        for name in of_others(parsed(path))
    }
    assert found == FILLED_IN


@pytest.mark.parametrize("source", ["writer._transport.abort()", "getattr(task, '_loop')", "other._clock"])
def test_private_names_of_others_are_found_whatever_they_are_called(source: str) -> None:
    assert {"_transport", "_loop", "_clock"} <= defined().names
    assert foreign_private_names(ast.parse(source)) == []
    assert len(of_others(ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nclass Slots(asyncio.Semaphore):\n    def take(self): self._value -= 1",
        "import aiohttp\ndef request() -> 'aiohttp.client._RequestContextManager': ...",
        "import asyncpg\nrun = asyncpg.Connection._execute",
        "import asyncpg\nrun = getattr(asyncpg.Connection, '_execute')",
        "from redis._parsers import Encoder",
        "from trunkline.telemetry import metrics\nmetrics.WEBHOOKS._value.get()",
        "def abort(socket): socket._waiting_fut.cancel()",
    ],
)
def test_private_names_of_dependencies_are_found(source: str) -> None:
    assert len(foreign_private_names(ast.parse(source))) == 1


def test_private_names_of_ours_are_not_found() -> None:
    source = "class Loop:\n    def __init__(self): self._value = 1\n    def get(self): return self._value"
    assert "_clock" in defined().names
    assert foreign_private_names(ast.parse("loop._clock = None")) == []
    assert "_value" not in defined().of_class("Slots")
    tree = ast.parse(source.replace("_value", "_clock"))
    assert [use[2] for use in uses(tree)] == ["_clock", "_clock"]

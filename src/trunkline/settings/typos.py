"""Warns about variables that resemble a setting: a misspelt one would otherwise be ignored silently."""

from collections.abc import Iterable, Iterator, Mapping

from trunkline.settings.spellings import PREFIX, is_service_link, may_be_service_link, spellings

# Read by the crash points of `trunkline.crashpoint`, in tests only; by commands that talk to the API, and by agents.
READ_ELSEWHERE = frozenset(
    {
        "TRUNKLINE_TESTING", "TRUNKLINE_CRASH_AT", "TRUNKLINE_STOP_AT", "TRUNKLINE_URL", "TRUNKLINE_API_URL",
        "TRUNKLINE_API_KEY",
    }
)  # fmt: skip


def warnings_about(environ: Mapping[str, str], variables: Iterable[str]) -> Iterator[str]:
    """A line for each name that is probably a mistake. Each variable is known by all its spellings."""
    known = [spelling for name in variables for spelling in spellings(name)]
    for name in sorted(environ.keys() - set(known) - READ_ELSEWHERE):
        if is_service_link(name, environ[name]):
            continue
        near = nearest(name, known)
        if near:
            yield f"{name} is not a setting of Trunkline; did you mean {near}?"
        elif name.startswith(PREFIX) and not may_be_service_link(name):
            yield f"{name} is not a setting of Trunkline and is ignored"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name within one or two edits; one for short names, which are near to each other anyway."""
    return next((other for other in known if _alike(name, other)), None)


def _alike(name: str, other: str) -> bool:
    """The first two tests are cheap and decide nearly every pair."""
    return (
        abs(len(name) - len(other)) <= 2
        and len(set(name) ^ set(other)) <= 4
        and distance(name, other) <= (1 if len(other) < 9 else 2)
    )


def distance(left: str, right: str) -> int:
    """Insertions, deletions and replacements that turn one word into the other (Levenshtein)."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        previous, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    return row[-1]

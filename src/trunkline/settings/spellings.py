"""The names that a variable may have: the one that it is documented by, and the same with `TRUNKLINE_` before it.

Kubernetes sets names of the second kind in every pod, as links to the Services of its namespace: a Service
`trunkline-http` gives TRUNKLINE_HTTP_PORT=tcp://10.0.0.7:8080. Such a link is no setting. Any other name that resembles
a setting gets a warning: a misspelt one would otherwise be ignored silently.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

PREFIX = "TRUNKLINE_"
_LINK = re.compile(rf"{PREFIX}(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_\w+)")
_LINK_OR_PORT = re.compile(rf"{PREFIX}(?:\w+_)?PORT")
_LINKED = re.compile(r"(?:tcp|udp|sctp)://.*", re.IGNORECASE)

# Read by the crash points of `trunkline.crashpoint`, in tests only; by commands that talk to the API, and by agents.
READ_ELSEWHERE = frozenset(
    {
        "TRUNKLINE_TESTING", "TRUNKLINE_CRASH_AT", "TRUNKLINE_STOP_AT", "TRUNKLINE_URL", "TRUNKLINE_API_URL",
        "TRUNKLINE_API_KEY",
    }
)  # fmt: skip


def spellings(name: str) -> tuple[str, ...]:
    """The documented name first. What the cluster sets has no other: the link to a Service `trunkline-kubernetes` is
    called TRUNKLINE_KUBERNETES_SERVICE_HOST, and its value is an address, as that of a setting would be."""
    other = f"{PREFIX}{name}"
    return (name,) if name.startswith(PREFIX) or _LINK.fullmatch(other) else (name, other)


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes has set it. The value distinguishes a port from a link."""
    return bool(_LINK.fullmatch(name) or (_LINK_OR_PORT.fullmatch(name) and _LINKED.fullmatch(value)))


def may_be_service_link(name: str) -> bool:
    return bool(_LINK.fullmatch(name) or _LINK_OR_PORT.fullmatch(name))


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

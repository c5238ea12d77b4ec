"""What the probes of a process answer."""

from dataclasses import dataclass, field
from typing import Literal

from trunkline.schema.fields import Indexed, about


@dataclass(frozen=True, slots=True)
class Health(Indexed):
    """The process runs."""

    status: Literal["ok"] = field(metadata=about("Always `ok`: a process that is not does not answer."))
    version: str = field(metadata=about("The version of the platform."))


@dataclass(frozen=True, slots=True)
class Probe(Indexed):
    """The state of a dependency of the process."""

    ok: bool = field(metadata=about("Whether it answers."))
    required: bool = field(metadata=about("Whether this process is not ready without it."))
    error: str | None = field(default=None, metadata=about("Why it does not answer."))


@dataclass(frozen=True, slots=True)
class Readiness(Indexed):
    """Whether the process can do its work."""

    status: Literal["ready", "degraded"] = field(
        metadata=about("`degraded`: a dependency is away that this process can do without.")
    )
    checks: dict[str, Probe] = field(metadata=about("Its dependencies, by name."))

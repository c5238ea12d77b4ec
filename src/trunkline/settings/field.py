"""Declares a setting: a field of a group, with all properties of its variable."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

# The audience of a setting. `operator`: the operator of an installation decides it. `carrier`: a carrier's account.
# `tuning`: the default fits nearly everywhere. `ignored`: accepted, since manifests name it, and without effect.
Rank = Literal["operator", "carrier", "tuning", "ignored"]


def env(name: str, default: object, meaning: str, *, rank: Rank = "tuning", **limits: Any) -> Any:
    """A field that is read from the variable `name`. Its default is written as an operator would write it; the meaning
    of an ignored one says why it has no effect."""
    value: dict[str, Any] = {"default_factory" if callable(default) else "default": default}
    return Field(
        validation_alias=name, description=meaning, json_schema_extra={"rank": rank}, **value, **limits
    )


class Group(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

"""How a setting is declared: a field of a group, which says everything about its variable."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


def env(name: str, default: object, meaning: str, **limits: Any) -> Any:
    """A field that is read from the variable `name`. Its default is written as an operator would write it."""
    value: dict[str, Any] = {"default_factory" if callable(default) else "default": default}
    return Field(validation_alias=name, description=meaning, **value, **limits)


class Group(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

"""Reads settings from the environment, checks all of them, and reports all problems at once."""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trunkline.settings.model import GivenValue, Settings
from trunkline.settings.problems import SettingProblem, SettingsError, clashes
from trunkline.settings.spellings import is_service_link, spellings
from trunkline.settings.typos import warnings_about
from trunkline.settings.variables import variables_of

VARIABLES = variables_of(Settings)


def load_settings(environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
    """Read the settings. Overrides go by the variables' names, `HTTP_PORT=0`, and win; None does not override."""
    environ = os.environ if environ is None else environ
    read = _read(environ)
    given = _given(read, overrides)
    settings, problems = _checked(given, _contradictions(read))
    if problems:
        raise SettingsError(problems)
    settings._given = {name: each._replace(value=_text(each.value)) for name, each in given.items()}
    settings._warnings = tuple(warnings_about(environ, VARIABLES))
    return settings


def _read(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The values of each variable, by spelling. An empty variable counts as unset: manifests and shells often cannot
    omit one."""
    read = {
        name: {
            spelling: value
            for spelling in spellings(name)
            if (value := environ.get(spelling, "").strip()) and not is_service_link(spelling, value)
        }
        for name in VARIABLES
    }
    return {name: found for name, found in read.items() if found}


def _contradictions(read: Mapping[str, Mapping[str, str]]) -> dict[str, SettingProblem]:
    """Variables with two spellings and two values: only the operator can resolve them."""
    problems: dict[str, SettingProblem] = {}
    for name, found in read.items():
        if len(set(found.values())) > 1:
            (first, value), (second, other) = found.items()
            masked = VARIABLES[name].masked
            allowed = f"the value of {second}, which is {masked(other)!r}, or only one of the two"
            problems[name] = SettingProblem(first, masked(value), allowed)
    return problems


def _given(read: Mapping[str, Mapping[str, str]], overrides: Mapping[str, object]) -> dict[str, GivenValue]:
    unknown = overrides.keys() - VARIABLES.keys()
    if unknown:
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
    return {
        **{name: GivenValue("environment", *next(iter(found.items()))) for name, found in read.items()},
        **{
            name: GivenValue("argument", name, value)
            for name, value in overrides.items()
            if value is not None
        },
    }


def _checked(
    given: dict[str, GivenValue], contradictions: Mapping[str, SettingProblem]
) -> tuple[Settings, list[SettingProblem]]:
    """Clashes are searched among the remaining values without the wrong ones, so that both kinds are reported."""
    invalid = _invalid(given)
    wrong = [name for name in VARIABLES if name in contradictions or name in invalid]
    settings = _built({name: value for name, value in given.items() if name not in wrong})
    problems = [contradictions.get(name) or _problem(name, given, VARIABLES[name].allowed) for name in wrong]
    fitting = (clash for clash in clashes(settings) if not any(name in wrong for name in clash.names))
    return settings, problems + [_problem(clash.names[0], given, clash.allowed) for clash in fitting]


def _invalid(given: dict[str, GivenValue]) -> set[str]:
    try:
        _built(given)
    except ValidationError as error:
        return VARIABLES.keys() & {part for problem in error.errors() for part in problem["loc"]}
    return set()


def _built(given: dict[str, GivenValue]) -> Settings:
    """Lay the flat names out as the groups of the model."""
    laid_out: dict[str, Any] = {}
    for name, each in given.items():
        group = VARIABLES[name].group
        (laid_out.setdefault(group, {}) if group else laid_out)[name] = each.value
    return Settings.model_validate(laid_out)


def _problem(name: str, given: dict[str, GivenValue], allowed: str) -> SettingProblem:
    """It names the variable in the operator's spelling."""
    _, spelling, value = given.get(name, GivenValue("default", name, VARIABLES[name].default))
    return SettingProblem(spelling, VARIABLES[name].masked(_text(value)) or None, allowed)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

"""From the environment to settings: everything is checked, and everything that is wrong is told at once."""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trunkline.settings.model import Settings, Source
from trunkline.settings.problems import SettingProblem, SettingsError, clashes
from trunkline.settings.typos import warnings_about
from trunkline.settings.variables import variables_of

Given = dict[str, tuple[Source, object]]

VARIABLES = variables_of(Settings)


def load_settings(environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
    """Read the settings. Overrides go by the variables' names, `HTTP_PORT=0`, and win; None does not override."""
    environ = os.environ if environ is None else environ
    given = _given(environ, overrides)
    settings, problems = _checked(given)
    if problems:
        raise SettingsError(problems)
    settings._given = {name: (source, _text(value)) for name, (source, value) in given.items()}
    settings._warnings = tuple(warnings_about(environ, VARIABLES))
    return settings


def _given(environ: Mapping[str, str], overrides: Mapping[str, object]) -> Given:
    """An empty variable counts as unset: manifests and shells often cannot leave one out."""
    unknown = overrides.keys() - VARIABLES.keys()
    if unknown:
        raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
    read = {name: environ[name].strip() for name in VARIABLES if name in environ}
    return {
        **{name: ("environment", value) for name, value in read.items() if value},
        **{name: ("argument", value) for name, value in overrides.items() if value is not None},
    }


def _checked(given: Given) -> tuple[Settings, list[SettingProblem]]:
    """Clashes are looked for among what is left when wrong values are put aside, so that both kinds are told."""
    wrong = _wrong(given)
    settings = _built({name: value for name, value in given.items() if name not in wrong})
    problems = [_problem(name, given, VARIABLES[name].allowed) for name in wrong]
    fitting = (clash for clash in clashes(settings) if not any(name in wrong for name in clash.names))
    return settings, problems + [_problem(clash.names[0], given, clash.allowed) for clash in fitting]


def _wrong(given: Given) -> list[str]:
    try:
        _built(given)
    except ValidationError as error:
        named = {part for problem in error.errors() for part in problem["loc"]}
        return [name for name in VARIABLES if name in named]
    return []


def _built(given: Given) -> Settings:
    """Lay the flat names out as the groups of the model."""
    laid_out: dict[str, Any] = {}
    for name, (_, value) in given.items():
        group = VARIABLES[name].group
        (laid_out.setdefault(group, {}) if group else laid_out)[name] = value
    return Settings.model_validate(laid_out)


def _problem(name: str, given: Given, allowed: str) -> SettingProblem:
    _, value = given.get(name, ("default", VARIABLES[name].default))
    return SettingProblem(name, VARIABLES[name].masked(_text(value)) or None, allowed)


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

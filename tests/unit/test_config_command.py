"""`trunkline config` prints what an operator meets and what is set; `--all` prints everything."""

import json
from collections import Counter
from typing import Any

from typer.testing import CliRunner

from trunkline.cli.main import app
from trunkline.settings.reading import VARIABLES
from trunkline.settings.spellings import spellings

# A runner adds to the environment of the test; None takes a variable out of it.
CLEAN: dict[str, str | None] = {spelling: None for name in VARIABLES for spelling in spellings(name)}
OPERATOR = [variable.name for variable in VARIABLES.values() if variable.rank == "operator"]


def printed(*words: str, **environ: str) -> str:
    result = CliRunner().invoke(app, ["config", *words], env=CLEAN | environ)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(*words: str, **environ: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(printed("--json", *words, **environ))}


def test_config_prints_the_operator_settings() -> None:
    shown = rows()
    assert list(shown) == OPERATOR
    assert {row["rank"] for row in shown.values()} == {"operator"}


def test_config_prints_a_set_variable_of_any_rank() -> None:
    shown = rows(TRUNKLINE_LEASE_TTL="2h", TWILIO_ACCOUNT_SID="AC1", TWILIO_AUTH_TOKEN="planted")
    assert sorted(shown) == sorted([*OPERATOR, "LEASE_TTL", "TWILIO_ACCOUNT_SID", "TWILIO_AUTH_TOKEN"])
    assert shown["LEASE_TTL"]["given_as"] == "TRUNKLINE_LEASE_TTL"
    assert shown["TWILIO_AUTH_TOKEN"]["value"] == "***"


def test_config_all_prints_every_setting_with_its_rank() -> None:
    shown = rows("--all")
    assert list(shown) == list(VARIABLES)
    ranks = Counter(variable.rank for variable in VARIABLES.values())
    assert Counter(row["rank"] for row in shown.values()) == ranks


def test_the_table_says_how_many_are_left_out_and_how_to_see_them() -> None:
    left_out = len(VARIABLES) - len(OPERATOR)
    assert f"{left_out} more settings" in printed()
    assert "`trunkline config --all` prints every one" in printed()
    assert "more settings" not in printed("--all")


def test_the_table_says_where_a_value_comes_from() -> None:
    table = printed(TRUNKLINE_HTTP_PORT="7000", LOG_LEVEL="error", REDIS_MAX_RETRIES="4")
    cells = {line.split("│")[1].strip(): line.split("│") for line in table.splitlines() if "│" in line}
    assert cells["HTTP_PORT"][3].strip() == "environment: TRUNKLINE_HTTP_PORT"
    assert cells["LOG_LEVEL"][3].strip() == "environment"
    assert cells["REDIS_MAX_RETRIES"][3].strip() == "environment, ignored"
    assert cells["HTTP_HOST"][3].strip() == "default"

from pathlib import Path

from typer.testing import CliRunner

from trunkline.cli.document import commands, rewritten
from trunkline.cli.main import app
from trunkline.cli.top import sparkline

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_generator_makes() -> None:
    assert rewritten(PAGE) == PAGE, "run: python -m trunkline.cli.document docs/reference/cli.md"


def test_every_command_says_what_it_does() -> None:
    assert [name for name, what in commands() if not what] == []
    assert len(list(commands())) > 30


def test_the_shell_can_complete_commands() -> None:
    environment = {"_TRUNKLINE_COMPLETE": "complete_bash", "COMP_WORDS": "trunkline le", "COMP_CWORD": "1"}
    result = CliRunner().invoke(app, [], prog_name="trunkline", env=environment)
    assert result.output.split() == ["leads"]


def test_a_sparkline_is_as_high_as_its_greatest_value() -> None:
    assert sparkline([0, 4, 8]) == " ▄█"
    assert sparkline([0, 0]) == "  "
    assert sparkline([]) == ""

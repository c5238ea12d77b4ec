"""An application's own jobs: its modules are found, and what is wrong with them is said at the start."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from trunkline.jobs import InvalidJob, recurring
from trunkline.jobs.platform.catalogue import ApplicationError, known_types, load_enricher, load_modules
from trunkline.jobs.recurring import declared_schedules
from trunkline.jobs.registry import declared

MODULE = """
from typing import Any
from trunkline.jobs import Run, job, recurring

@job("acme_report")
async def report(day: str, run: Run) -> None: ...

recurring("acme_nightly", report, "today", "cron 30 2 * * *", timezone="Europe/Berlin")

class Enricher:
    async def enrich(self, item: Any) -> Any: ...
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "acme_jobs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(declared, "_types", dict(declared._types))
    monkeypatch.setattr(declared, "_handlers", dict(declared._handlers))
    before = list(declared_schedules)
    yield
    declared_schedules[:] = before


@pytest.mark.usefixtures("acme")
def test_the_types_schedules_and_enricher_of_a_module_are_known() -> None:
    load_modules(["acme_jobs"])
    assert known_types()["acme_report"].name == "acme_report"
    [schedule] = [schedule for schedule in declared_schedules if schedule.name == "acme_nightly"]
    assert (schedule.rule, schedule.timezone) == ("cron 30 2 * * *", "Europe/Berlin")
    assert type(load_enricher("acme_jobs:Enricher")).__name__ == "Enricher"
    with pytest.raises(InvalidJob, match="two recurring jobs of the name acme_nightly"):
        recurring("acme_nightly", schedule.job_type, "today", "cron @daily")


def test_an_enricher_whose_enrich_is_a_plain_function_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_plain.py").write_text("class Enricher:\n    def enrich(self, item): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ApplicationError, match=r"Enricher\.enrich \(.*acme_plain\.py:2\) is a plain function"
    ):
        load_enricher("acme_plain:Enricher")


def test_without_settings_there_is_nothing_to_load() -> None:
    load_modules([])
    assert load_enricher(None) is None
    assert load_enricher("fetch") is None


def test_a_module_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(ApplicationError, match=r"JOB_MODULES names acme\.nowhere"):
        load_modules(["acme.nowhere"])


@pytest.mark.parametrize("path", ["acme.nowhere:x", "trunkline.jobs:nothing", "trunkline.jobs"])
def test_an_enricher_that_cannot_be_made_is_named(path: str) -> None:
    with pytest.raises(ApplicationError, match=f"CALL_ENRICHER={path} cannot be used"):
        load_enricher(path)


def test_a_wrong_rule_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidJob):
        recurring("never", known_types()["export"], {}, "cron 61 * * * *")

"""The files of the schema: how they are named, what each may touch, and that rows carry their tenant."""

import re
from pathlib import Path

import pytest

import trunkline.store
from trunkline.store import migrate
from trunkline.store.migrate import Migration
from trunkline.store.sql import migrations

STORE = Path(trunkline.store.__file__).parent
AREAS = {"tenants", "policy", "leads", "calls", "agents", "mailboxes", "jobs", "operation"}
SQL = {m.name: re.sub(r"--.*", "", m.sql) for m in migrate.known()}
TABLES = {
    table: columns
    for sql in SQL.values()
    for table, columns in re.findall(r"^CREATE TABLE (\w+) \((.*?)^\)", sql, re.DOTALL | re.MULTILINE)
}


def test_every_number_is_given_once_and_in_order() -> None:
    numbers = [int(entry.name[:4]) for entry in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_name_says_when_it_runs_and_what_it_is_about() -> None:
    assert {m.area for m in migrate.known()} <= AREAS


@pytest.mark.parametrize("names", [("0009_leads",), ("0009_pre_leads", "0009_post_leads")])
def test_a_name_that_says_less_and_a_number_given_twice_are_refused(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        (tmp_path / f"{name}.sql").write_text("SELECT 1;")
    monkeypatch.setattr(migrate, "migrations", lambda: sorted(tmp_path.iterdir()))
    with pytest.raises(ValueError, match=r"no name for a migration|the same number"):
        migrate.known.__wrapped__()


def test_there_are_few_files_of_sql() -> None:
    assert len(list(STORE.rglob("*.sql"))) <= 60


def test_every_object_is_made_once() -> None:
    made = re.findall(
        r"^CREATE (?:UNIQUE )?(TABLE|INDEX|VIEW|FUNCTION|TRIGGER|SEQUENCE) (\w+)",
        "".join(SQL.values()),
        re.MULTILINE,
    )
    assert len(made) > 150
    assert sorted(made) == sorted(set(made))


def test_what_an_application_has_is_changed_by_files_of_its_area_alone() -> None:
    """It has the files of that area, and no others."""
    changes = r"\b(?:TABLE|VIEW|FUNCTION|ON)\s+(?:IF (?:NOT )?EXISTS\s+)?"
    job = re.compile(changes + r"(?:job_(?:outbox|keys|pauses|progress|history|dead|schedules)|jobs)\b")
    mailbox = re.compile(changes + r"(?:mailboxes|mailbox_(?!kinds)\w+)\b")
    for migration in migrate.known():
        sql = SQL[migration.name]
        assert bool(job.search(sql)) == (migration.area == "jobs"), migration.name
        assert bool(mailbox.search(sql)) == (migration.area == "mailboxes"), migration.name


def test_a_file_outside_a_transaction_is_read_statement_by_statement() -> None:
    file = Migration(
        "0009_pre_leads_index",
        "-- outside a transaction\n-- why; and how\nDROP INDEX a;\n\nCREATE INDEX a\n  ON b (c);",
    )
    assert file.runs_outside
    assert [re.sub(r"(--.*\n|\s+)", " ", each).strip() for each in file.statements] == [
        "DROP INDEX a",
        "CREATE INDEX a ON b (c)",
    ]
    assert not any(m.runs_outside for m in migrate.known())


# Row security asks a merchant's reseller of `merchants` here: see docs/decisions/0053-schema-baseline.md.
BY_MERCHANT = {
    "allocations", "campaign_counts", "cutovers", "decisions", "inbound_policies", "merchant_days", "merchants",
    "no_agent_brakes", "resellers", "router_merchants",
}  # fmt: skip
# And here of the row that the row is about.
BY_PARENT = {"job_progress": "job_id", "mailboxes": "kind", "mailbox_events": "mailbox_id"}
OF_THE_PLATFORM = {
    "account_looks", "alarm_samples", "carrier_accounts", "carrier_health", "console_spent", "continuity",
    "control_versions", "cooldowns", "cost_readings", "flags", "job_pauses", "job_schedules", "leaders", "measures",
    "paces", "pod_hearing", "pod_versions", "pods", "processes", "restores", "webhook_hearing",
}  # fmt: skip


def test_every_row_carries_its_tenant_or_is_the_platforms() -> None:
    without = {name for name, columns in TABLES.items() if not _has(columns, "reseller_id", "merchant_id")}
    assert without == BY_MERCHANT | BY_PARENT.keys() | OF_THE_PLATFORM
    for name in BY_MERCHANT - {"resellers", "merchants"}:
        assert _has(TABLES[name], "merchant_id"), name
    for name, column in BY_PARENT.items():
        assert _has(TABLES[name], column), name


def _has(columns: str, *names: str) -> bool:
    return all(re.search(rf"^    {name} ", columns, re.MULTILINE) for name in names)

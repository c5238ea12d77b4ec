"""CONTRIBUTING's "Add a field to a resource", followed to the letter in a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trunkline"
FILES_MAX = 8

_READ = '    {name}: str | None = field(metadata=about("New.", absent=None))\n'
_SENT = '    {name}: Text | None = field(default=None, metadata=about("New."))\n'

# By file: after which text what is added, wherever it stands.
NOTE_OF_A_POOL = {
    "schema/numbers.py": [
        ("    region_affinity: bool = field(metadata=_REGION)\n", _READ.format(name="note")),
        ("    region_affinity: bool = field(default=False, metadata=_REGION)\n", _SENT.format(name="note")),
        (
            "    region_affinity: bool | None = field(default=None, metadata=_REGION)\n",
            _SENT.format(name="note"),
        ),
        ("    PhoneText,\n", "    Text,\n"),
    ],
}
REFERENCE_OF_A_LEAD = {
    "schema/leads.py": [
        ('    cancel_reason: str | None = field(metadata=about("Why it was aborted."))\n',
         _READ.format(name="reference")),
    ],
    "leads/ingest.py": [
        ('    campaign_id: UUID | None = Field(None, description="The campaign it belongs to.")\n',
         '    reference: Text | None = Field(None, description="New.")\n'),
        ("        priority=request.priority,\n", "        reference=request.reference,\n"),
        ("        request.priority,\n", "        request.reference,\n"),
    ],
    "store/leads.py": [
        ("    expires_at: datetime | None\n", "    reference: str | None\n"),
    ],
    "store/queries/leads.sql": [
        ("scheduled_at, due_at, closes_at, expires_at", ", reference"),
        ("$16::timestamptz, $18::timestamptz", ", $19::text"),
        ("           s.expires_at", ", s.reference"),
        ("    expires_at             timestamptz", ", reference text"),
    ],
    "client/leads.py": [
        ("    timezone: str | None\n", "    reference: str | None\n"),
    ],
}  # fmt: skip


def add(copy: Path, migration: str, sql: str, edits: dict[str, list[tuple[str, str]]]) -> int:
    """Returns how many files it took, the migration included."""
    numbers = [int(path.name[:4]) for path in (copy / "store/migrations").glob("*.sql")]
    (copy / f"store/migrations/{max(numbers) + 1:04}_pre_{migration}.sql").write_text(sql, encoding="utf-8")
    for name, changes in edits.items():
        text = (copy / name).read_text(encoding="utf-8")
        for after, added in changes:
            assert after in text, f"{name} has no {after!r}: the recipe has to follow"
            text = text.replace(after, after + added)
        (copy / name).write_text(text, encoding="utf-8")
    return 1 + len(edits)


def test_a_new_field_takes_a_few_files_and_goes_from_the_client_to_the_store(
    database_url: str, tmp_path: Path
) -> None:
    copy = tmp_path / "trunkline"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    note = "-- Notes on pools.\nALTER TABLE pools ADD COLUMN note text;\n"
    assert add(copy, "tenants_pool_note", note, NOTE_OF_A_POOL) == 2
    reference = "-- References of leads.\nALTER TABLE leads ADD COLUMN reference text;\n"
    assert add(copy, "leads_reference", reference, REFERENCE_OF_A_LEAD) <= FILES_MAX
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    result = subprocess.run(
        [sys.executable, "-m", "tests.support.api.new_fields", database_url],
        env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]


def test_the_recipe_names_every_file_that_it_takes() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    recipe = re.search(r"## Add a field to a resource\n(.*?)\n## ", text, re.DOTALL)
    assert recipe is not None
    missing = [name for name in (*NOTE_OF_A_POOL, *REFERENCE_OF_A_LEAD) if f"`{name}`" not in recipe[1]]
    assert missing == []

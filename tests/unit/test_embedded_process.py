from pathlib import Path

import pytest

from trunkline.embedded import process
from trunkline.embedded.process import rotate


def test_a_large_log_is_rotated_and_one_older_one_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LOG_BYTES_MAX", 10)
    log, older = tmp_path / "postgres.log", tmp_path / "postgres.log.1"
    for text in ("first run, many lines", "second run, many lines"):
        log.write_text(text)
        rotate(log)
        assert not log.exists()
        assert older.read_text() == text


def test_a_small_or_missing_log_is_not_rotated(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    rotate(log)
    log.write_text("short")
    rotate(log)
    assert log.read_text() == "short"

import stat
from pathlib import Path

import pytest

from trunkline.api import key_format
from trunkline.api.admin_key import AdminKeyError, read_or_make_admin_key


def test_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    key = read_or_make_admin_key(path)
    assert key_format.is_well_formed(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_make_admin_key(path) == key
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_others_may_read_is_closed_again(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    key = read_or_make_admin_key(path)
    path.chmod(0o644)
    assert read_or_make_admin_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_without_a_key_is_named_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    path.write_text("")
    with pytest.raises(AdminKeyError, match=r"admin\.key holds no valid key"):
        read_or_make_admin_key(path)
    assert path.read_text() == ""

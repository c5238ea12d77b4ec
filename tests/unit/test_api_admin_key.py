import stat
from pathlib import Path

import pytest

from trunkline.api import key_format
from trunkline.api.admin_key import AdminKeyError, read_or_make_admin_key


def test_the_admin_key_file_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    key = read_or_make_admin_key(path)
    assert key_format.is_well_formed(key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_make_admin_key(path) == key
    assert list(tmp_path.iterdir()) == [path]


def test_an_admin_key_file_readable_by_others_is_restricted_again(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    key = read_or_make_admin_key(path)
    path.chmod(0o644)
    assert read_or_make_admin_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_invalid_admin_key_file_is_an_error_and_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    path.write_text("")
    with pytest.raises(AdminKeyError, match=r"admin\.key holds no valid key"):
        read_or_make_admin_key(path)
    assert path.read_text() == ""

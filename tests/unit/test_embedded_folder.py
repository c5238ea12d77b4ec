import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from trunkline.embedded import EmbeddedError
from trunkline.embedded.folder import DataFolder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    folder = DataFolder(tmp_path / "deep" / "data")
    folder.take()
    yield folder
    folder.leave()


def test_a_new_folder_is_closed_to_others(folder: DataFolder) -> None:
    folder.password()
    folder.announce({})
    assert mode(folder.path) == mode(folder.logs) == 0o700
    assert {mode(folder.path / name) for name in ("lock", "password", "engines.json")} == {0o600}


def test_the_mode_of_an_existing_folder_is_unchanged(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    folder = DataFolder(tmp_path)
    folder.take()
    folder.leave()
    assert mode(tmp_path) == 0o755


def test_a_second_start_is_refused_with_the_process_that_holds_the_folder(folder: DataFolder) -> None:
    with pytest.raises(EmbeddedError) as caught:
        DataFolder(folder.path).take()
    assert str(caught.value) == (
        f"data folder {folder.path} is in use by process {os.getpid()}: stop it, or choose another --data-dir"
    )


def test_a_released_folder_can_be_taken_again(folder: DataFolder) -> None:
    folder.leave()
    again = DataFolder(folder.path)
    again.take()
    again.leave()


def test_a_refused_start_does_not_free_the_folder(folder: DataFolder) -> None:
    for _ in range(2):
        with pytest.raises(EmbeddedError, match="in use"):
            DataFolder(folder.path).take()


def test_a_file_in_the_way_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(EmbeddedError, match=r"data cannot be used \(.+\): choose another --data-dir"):
        DataFolder(tmp_path / "data").take()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_folder_of_another_user_is_refused(folder: DataFolder) -> None:
    folder.leave()
    os.chown(folder.path / "lock", 4242, 4242)
    with pytest.raises(EmbeddedError, match="belongs to user id 4242"):
        DataFolder(folder.path).take()


def test_the_folders_password_is_made_once(folder: DataFolder) -> None:
    password = folder.password()
    assert len(password) >= 32
    assert DataFolder(folder.path).password() == password


def test_a_lost_password_is_an_error_once_postgres_has_it(folder: DataFolder) -> None:
    folder.postgres.mkdir()
    with pytest.raises(EmbeddedError, match="password is missing"):
        folder.password()
    assert not (folder.path / "password").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"valkey": 5}', '{"valkey": {"port": "x"}}'])
def test_a_damaged_engines_json_is_ignored(folder: DataFolder, text: str) -> None:
    (folder.path / "engines.json").write_text(text)
    assert folder.last_port("valkey") is None


def test_the_last_port_is_read_from_engines_json(folder: DataFolder) -> None:
    folder.announce({"valkey": {"port": 7001}})
    assert DataFolder(folder.path).last_port("valkey") == 7001
    assert json.loads((folder.path / "engines.json").read_text()) == {"valkey": {"port": 7001}}

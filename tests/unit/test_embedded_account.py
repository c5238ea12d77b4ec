import os
import pwd
from pathlib import Path

import pytest

from trunkline.embedded import EmbeddedError
from trunkline.embedded.account import SystemUser, choose_account, require_name

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="what root does, only root can show")


def test_an_ordinary_user_runs_the_servers_under_their_own_id(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1001)
    account = choose_account(tmp_path)
    assert account == SystemUser(1000, 1001)
    assert not account.is_another


@as_root
def test_root_never_runs_a_server(tmp_path: Path) -> None:
    account = choose_account(tmp_path, tmp_path / "missing")
    assert account.uid != 0
    assert account.is_another
    require_name(account)


@as_root
def test_the_servers_run_as_the_owner_of_an_existing_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, 4242, 4243)
    assert choose_account(tmp_path / "missing", tmp_path) == SystemUser(4242, 4243)


@as_root
def test_without_a_user_to_run_as_there_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nobody_there(name: str) -> pwd.struct_passwd:
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", nobody_there)
    with pytest.raises(EmbeddedError, match="no user trunkline or nobody"):
        choose_account(tmp_path)


def test_a_user_id_without_a_name_is_refused() -> None:
    with pytest.raises(EmbeddedError, match="user id 4242424 has no name"):
        require_name(SystemUser(4242424, 0))

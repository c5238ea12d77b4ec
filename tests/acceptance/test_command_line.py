"""The command line as a person meets it: what works, and one clear line for what does not."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from trunkline.embedded import Engines

TRUNKLINE = str(Path(sys.executable).parent / "trunkline")


def environment(**variables: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "HTTP_PORT": "0", "METRICS_PORT": "0", **variables}


def trunkline(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [TRUNKLINE, *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def complaint(result: "subprocess.CompletedProcess[str]") -> str:
    """The one line that a failed command leaves. Log lines are JSON, and stand beside it."""
    assert result.returncode == 1, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("trunkline: ")]
    assert "Traceback" not in result.stderr
    return line


def test_config_names_every_wrong_setting_at_once() -> None:
    result = trunkline("config", HTTP_PORT="many", LOG_LEVEL="loud")
    assert result.returncode == 1
    assert "HTTP_PORT" in result.stderr
    assert "LOG_LEVEL" in result.stderr


def test_up_reports_a_taken_port_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        result = trunkline("up", "--data-dir", str(tmp_path / "data"), HTTP_PORT=port)
    assert f"Port {port} on 127.0.0.1 is taken" in complaint(result)
    assert "HTTP_PORT" in complaint(result)


def test_commands_report_an_unreachable_database_in_one_line(tmp_path: Path) -> None:
    away = "postgresql://nobody:secret@127.0.0.1:1/nothing"
    for command in (["migrate"], ["up", "--data-dir", str(tmp_path / "data")]):
        line = complaint(trunkline(*command, DATABASE_URL=away))
        assert "Postgres cannot be reached" in line
        assert "secret" not in line


def test_up_reports_a_corrupt_data_folder_in_one_line_and_leaves_it_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    assert trunkline("migrate", "--data-dir", str(folder)).returncode == 0
    version = next(folder.rglob("PG_VERSION"))
    version.write_text("9\n")
    before = sorted(str(path) for path in folder.rglob("*"))
    assert str(folder) in complaint(trunkline("up", "--data-dir", str(folder)))
    assert version.read_text() == "9\n"
    assert [path for path in before if not Path(path).exists() and "postmaster" not in path] == []


async def test_a_data_folder_of_before_the_first_release_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with Engines(folder, redis_url="redis://unused") as engines:
        connection = await asyncpg.connect(engines.database_url)
        await connection.execute(
            "CREATE TABLE schema_migrations (name text PRIMARY KEY, checksum text NOT NULL, applied_at timestamptz);"
            "INSERT INTO schema_migrations VALUES ('0001_tenants', '', now())"
        )
        await connection.close()
    for command in ("up", "migrate", "demo"):
        line = complaint(trunkline(command, "--data-dir", str(folder)))
        assert "made before the first release" in line
        assert "fresh data folder (--data-dir)" in line


async def test_serving_on_a_schema_that_is_too_old_or_too_new_says_which_command_helps(
    empty_database_url: str, redis_url: str
) -> None:
    engines = {
        "DATABASE_URL": empty_database_url,
        "REDIS_URL": redis_url,
        "TRUNKLINE_SECRET_KEY": "a-secret-key-for-tests-only-0123456789",
    }
    too_old = complaint(trunkline("serve", "--roles", "api", **engines))
    assert "run `trunkline migrate`, then start this process again." in too_old
    assert "The schema is up to date." in trunkline("migrate", **engines).stdout
    connection = await asyncpg.connect(empty_database_url)
    await connection.execute(
        "INSERT INTO schema_migrations (number, name, checksum, applied_at)"
        " VALUES (901, '0901_post_leads_timezone', '', now())"
    )
    await connection.close()
    too_new = complaint(trunkline("serve", "--roles", "api", **engines))
    assert "`trunkline migrate` of a newer version has applied 0901_post_leads_timezone" in too_new


def test_migrating_before_and_after_a_deploy_at_once_is_called_wrongly() -> None:
    result = trunkline("migrate", "--pre", "--post")
    assert result.returncode == 2
    assert "--pre" in result.stderr


def test_serve_without_engines_names_the_missing_settings() -> None:
    line = complaint(trunkline("serve", "--roles", "api"))
    for name in ("DATABASE_URL", "REDIS_URL", "TRUNKLINE_SECRET_KEY"):
        assert name in line


def test_serve_names_an_unknown_role() -> None:
    result = trunkline("serve", "--roles", "api,cook")
    assert result.returncode == 1
    assert "cook" in result.stderr


def test_config_prints_the_settings_with_secrets_masked() -> None:
    result = trunkline("config", "--json", TRUNKLINE_ADMIN_KEY="a-very-secret-admin-key", HTTP_PORT="8123")
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert "very-secret" not in result.stdout
    assert rows["HTTP_PORT"]["value"] == "8123"


def test_doctor_names_what_to_fix(tmp_path: Path) -> None:
    result = trunkline("doctor", "--data-dir", str(tmp_path), "--json")
    findings = {finding["what"]: finding for finding in json.loads(result.stdout)}
    assert result.returncode == 1
    assert "trunkline up" in findings["Postgres"]["detail"]


def test_the_demo_completes_every_lead(tmp_path: Path) -> None:
    result = trunkline("demo", "--leads", "30", "--exit", "--data-dir", str(tmp_path / "data"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "30 of 30" in result.stdout


@contextmanager
def running(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [TRUNKLINE, "up", "--data-dir", str(folder)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert "Trunkline runs at" in process.stdout.readline()
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        process.stdout.close()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_up_stops_cleanly_on_a_signal(tmp_path: Path, sent: signal.Signals) -> None:
    with running(tmp_path / "data") as process:
        process.send_signal(sent)
        assert process.wait(60) == 0


def test_up_starts_again_after_it_was_killed_and_refuses_a_second_start(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running(folder) as process:
        key = (folder / "admin.key").read_text()
        assert (folder / "admin.key").stat().st_mode & 0o777 == 0o600
        assert str(process.pid) in complaint(trunkline("up", "--data-dir", str(folder)))
        process.kill()
    with running(folder):
        assert (folder / "admin.key").read_text() == key


def test_doctor_finds_no_problem_in_a_running_platform(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running(folder):
        result = trunkline("doctor", "--data-dir", str(folder), "--json")
    states = {finding["what"]: finding["state"] for finding in json.loads(result.stdout)}
    assert states["Postgres"] == states["Valkey"] == states["migrations"] == "ok"

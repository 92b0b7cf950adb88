"""A backup of SQLite during writes, verified by restoring it: commands as they are run."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from helexa_site.backup import databases
from tests.helexa_site import processes

ADD_USER = (
    "INSERT INTO auth_user (username, password, first_name, last_name, email, is_superuser,"
    " is_staff, is_active, date_joined) VALUES (?, '', '', '', '', 0, 0, 1, '2026-01-01')"
)
SECRET = "a-secret-of-then"


def manage(
    data_dir: Path, *arguments: str, succeeds: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    unset = ("DATABASE_URL", "HELEXA_SECRET_KEY")
    done = processes.manage(*arguments, unset=unset, HELEXA_DATA_DIR=str(data_dir), **variables)
    assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
    return done


def users(data_dir: Path) -> set[str]:
    with closing(sqlite3.connect(data_dir / "helexa.sqlite3")) as database:
        return {name for (name,) in database.execute("SELECT username FROM auth_user")}


def add_user(data_dir: Path, name: str) -> None:
    with closing(sqlite3.connect(data_dir / "helexa.sqlite3")) as database, database:
        database.execute(ADD_USER, (name,))


def test_a_copy_is_of_one_moment_and_stops_no_writer(tmp_path: Path) -> None:
    database, out = tmp_path / "helexa.sqlite3", tmp_path / "out"
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE users (name TEXT)")
        writer.execute("INSERT INTO users VALUES ('alice')")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO users VALUES ('half-written')")
        out.mkdir()
        assert databases.copy_file(database, out) == {"users": 1}
        writer.execute("COMMIT")
    assert databases.has_rows(database)
    kept = databases.put_in_place(out, database)
    assert databases.whole_rows(database) == {"users": 1}
    assert kept is not None and databases.whole_rows(kept) == {"users": 2}


@pytest.mark.slow
def test_what_was_backed_up_comes_back(tmp_path: Path) -> None:
    here, there, archive = tmp_path / "here", tmp_path / "there", tmp_path / "backup.tar.gz"
    here.mkdir()
    (here / "secret_key").write_text(SECRET)
    manage(here, "migrate", "--verbosity", "0")
    add_user(here, "alice")
    files = ("neurons/beast.join", "files/file-1", "files/file-2.by-gateway")
    for name in files:
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text(name)

    with closing(sqlite3.connect(here / "helexa.sqlite3", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute(ADD_USER, ("half-written",))
        manage(here, "backup", str(archive), HELEXA_LEDGER_RETENTION_DAYS="7")
        writer.execute("COMMIT")
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    again = manage(here, "backup", str(archive), succeeds=False)
    assert "is there already" in again.stderr
    add_user(here, "later")

    output = manage(there, "restore", str(archive)).stdout
    assert [(there / name).read_text() for name in files] == list(files)
    assert users(there) == {"alice"}
    assert (there / "secret_key").read_text() == SECRET
    assert stat.S_IMODE((there / "secret_key").stat().st_mode) == 0o600
    settings = there / "restored-settings.env"
    assert "HELEXA_LEDGER_RETENTION_DAYS=7\n" in settings.read_text()
    assert str(settings) in output

    refused = manage(here, "restore", str(archive), succeeds=False)
    assert "--replace" in refused.stderr
    assert users(here) == {"alice", "half-written", "later"}
    nowhere = str(archive / "files")  # a failure at the files leaves the database there
    manage(here, "restore", "--replace", str(archive), succeeds=False, HELEXA_FILES_DIR=nowhere)
    assert users(here) == {"alice", "half-written", "later"}
    manage(here, "restore", "--replace", str(archive))
    assert users(here) == {"alice"}
    (aside,) = here.glob("helexa.sqlite3.before-*")
    with closing(sqlite3.connect(aside)) as before:
        assert before.execute("SELECT count(*) FROM auth_user").fetchone() == (3,)

    elsewhere = {"HELEXA_FILES_DIR": str(tmp_path / "shared")}
    manage(here, "restore", "--check", str(archive), **elsewhere)
    assert not (tmp_path / "shared").exists()
    manage(here, "backup", "--overwrite", str(archive))
    archive.write_bytes(archive.read_bytes()[:-500])
    damaged = manage(here, "restore", "--check", str(archive), succeeds=False)
    assert "no backup that can be read" in damaged.stderr

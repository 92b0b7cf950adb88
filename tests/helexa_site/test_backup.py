"""Backups, verified by restoring them: commands as they are run, archives, and what is refused."""

from __future__ import annotations

import errno
import io
import json
import sqlite3
import stat
import subprocess
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from helexa_site import backup, backup_parts
from helexa_site.backup import FORMAT, MANIFEST, extract, pack, unpack
from helexa_site.config import read_config
from helexa_site.data_directory import claimed_data_directory
from tests.cases import each_case
from tests.helexa_site import processes
from tests.servers.private_postgres import new_database, running_postgres

ADD_USER = (
    "INSERT INTO auth_user (username, password, first_name, last_name, email, is_superuser,"
    " is_staff, is_active, date_joined) VALUES (?, '', '', '', '', 0, 0, 1, '2026-01-01')"
)


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


@pytest.mark.slow
def test_what_was_backed_up_comes_back(tmp_path: Path) -> None:
    here, there, archive = tmp_path / "here", tmp_path / "there", tmp_path / "backup.tar.gz"
    here.mkdir()
    manage(here, "migrate", "--verbosity", "0")
    add_user(here, "alice")
    files = ("neurons/beast.join", "files/file-1", "files/file-2.by-gateway", "secret_key")
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


USERS = """
import json
from django.contrib.auth.models import User
for name in {names}:
    User.objects.create(username=name)
print(json.dumps(list(User.objects.order_by("id").values_list("id", "username"))))
"""


@pytest.mark.postgres
@pytest.mark.slow
def test_what_was_backed_up_of_postgresql_comes_back(tmp_path: Path) -> None:
    archive, elsewhere = str(tmp_path / "backup.tar.gz"), tmp_path / "elsewhere"

    def users_at(url: str, data_dir: Path, *new: str) -> list[list[object]]:
        """After these were made."""
        words = ("shell", "--verbosity", "0", "-c", USERS.format(names=list(new)))
        found: list[list[object]] = json.loads(manage(data_dir, *words, DATABASE_URL=url).stdout)
        return found

    with running_postgres() as server_url, psycopg.connect(server_url) as connection:
        here, there = new_database(server_url), new_database(server_url)
        manage(tmp_path, "migrate", "--verbosity", "0", DATABASE_URL=here)
        users_at(here, tmp_path, "alice", "bob\\tof\nthe tabs")
        manage(tmp_path, "backup", archive, DATABASE_URL=here)
        users_at(here, tmp_path, "later")
        manage(elsewhere, "restore", archive, DATABASE_URL=there)
        # New rows get numbers of their own.
        expected = [[1, "alice"], [2, "bob\\tof\nthe tabs"], [3, "carol"]]
        assert users_at(there, elsewhere, "carol") == expected
        refused = manage(elsewhere, "restore", archive, succeeds=False, DATABASE_URL=there)
        assert "holds a helexa already" in refused.stderr
        listed = "SELECT datname FROM pg_database ORDER BY datname"
        before = connection.execute(listed).fetchall()
        manage(tmp_path, "restore", "--check", archive, DATABASE_URL=here)
        assert connection.execute(listed).fetchall() == before


MADE = backup_parts.Manifest(
    format=FORMAT,
    version="0.1.0",
    made_at="2026-01-01T00:00:00+00:00",
    vendor="sqlite",
    migrations=[["helexa_site", "0001_login_attempts"]],
    rows={"fleet_neuron": 2},
    columns={"fleet_neuron": ["id"]},
)


def test_an_archive_is_read_as_it_was_packed_or_refused(tmp_path: Path) -> None:
    # Of apps of earlier releases the migrations and tables are not known here any more.
    migrations = [["axes", "0001_initial"], *MADE.migrations]
    rows, columns = {"axes_accesslog": 1}, {"axes_accesslog": ["id"]}
    earlier = replace(MADE, migrations=migrations, rows=rows | MADE.rows)
    earlier = replace(earlier, columns=columns | MADE.columns)
    archive, content = tmp_path / "backup.tar.gz", tmp_path / "content"
    (content / "database").mkdir(parents=True)
    (content / "database" / "one").write_text("rows")
    pack(content, earlier, archive)
    found = unpack(archive, tmp_path / "out")
    assert replace(found, files={}) == MADE
    assert (tmp_path / "out" / "database" / "one").read_text() == "rows"
    for name, text, reason in (
        ("database/one", "others", "database/one is not what was backed up"),
        (MANIFEST, json.dumps({"format": FORMAT + 1}), "is of format"),
        (MANIFEST, "{", "no backup that can be read"),
    ):
        (content / name).write_text(text)
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(content, arcname=".")
        with pytest.raises(backup_parts.BackupError, match=reason):
            unpack(archive, tmp_path / "elsewhere")
    archive.write_text("\xff\xd8" * 1000)
    with pytest.raises(backup_parts.BackupError, match="no backup that can be read"):
        unpack(archive, tmp_path / "elsewhere")


def test_what_cannot_be_restored_here_is_refused(tmp_path: Path) -> None:
    backup.ensure_restorable(MADE)
    for changes, reason in (
        ({"migrations": [["fleet", "9999_future"]]}, r"fleet\.9999_future is not known"),
        ({"migrations": [["fleet", "0001_initial"]]}, r"before 0\.2\.0"),
        ({"vendor": "postgresql"}, "of postgresql"),
    ):
        with pytest.raises(backup_parts.BackupError, match=reason):
            backup.ensure_restorable(replace(MADE, **changes))  # type: ignore[arg-type]
    with claimed_data_directory(tmp_path):
        with (
            pytest.raises(backup_parts.BackupError, match="stop it first"),
            backup.without_serve(tmp_path),
        ):
            pytest.fail("a serve runs")
    with backup.without_serve(tmp_path):
        pass
    place = Path("/data")  # an error of the disk names its place
    assert backup_parts.os_error_text(OSError(errno.ENOSPC, "No space"), place) == "/data: No space"
    message = backup_parts.os_error_text(
        PermissionError(errno.EACCES, "Permission denied", "/data/x"), place
    )
    assert message == "[Errno 13] Permission denied: '/data/x'"


def make_database(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in ("PRAGMA journal_mode=WAL", *statements):
            database.execute(statement)


def test_a_copy_is_of_one_moment_and_the_database_that_was_there_is_kept_beside(
    tmp_path: Path,
) -> None:
    """Damage is why there are backups. A restore that fails leaves the database there."""
    database, out = tmp_path / "helexa.sqlite3", tmp_path / "out"
    assert not backup_parts.has_rows(database)
    make_database(database, "CREATE TABLE users (name TEXT)", "INSERT INTO users VALUES ('alice')")
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO users VALUES ('half-written')")
        out.mkdir()
        assert backup_parts.copy_file(database, out) == {"users": 1}, "it stops no writer"
        writer.execute("COMMIT")
    assert backup_parts.has_rows(database)
    copy = (out / backup_parts.DATABASE_FILE).read_bytes()
    for before in (database.read_bytes(), b"no database at all" * 100):
        database.write_bytes(before)
        with pytest.raises(OSError, match="No such file"):  # of a full disk it is another one
            backup_parts.put_in_place(tmp_path / "nothing", database)
        assert database.read_bytes() == before
        (out / backup_parts.DATABASE_FILE).write_bytes(copy)
        kept = backup_parts.put_in_place(out, database)
        assert backup_parts.whole_rows(database) == {"users": 1}
        assert kept is not None and kept.read_bytes() == before
        files = {path.name for path in tmp_path.iterdir() if path.is_file()}
        assert files == {"helexa.sqlite3", kept.name}
        kept.unlink()
    broken = tmp_path / "broken.sqlite3"
    broken.write_bytes(b"SQLite format 3\0" + b"\x7f" * 5000)
    assert backup_parts.has_rows(broken)
    with pytest.raises(backup_parts.BackupError, match=r"damaged|cannot be copied"):
        backup_parts.copy_file(broken, tmp_path)
    with pytest.raises(backup_parts.BackupError, match="damaged"):
        backup_parts.whole_rows(broken)
    a, b = "CREATE TABLE a (id INTEGER PRIMARY KEY)", "CREATE TABLE b (a REFERENCES a (id))"
    make_database(tmp_path / "db", a, b, "INSERT INTO b VALUES (7)")
    with pytest.raises(backup_parts.BackupError, match="a row of b refers to nothing"):
        backup_parts.whole_rows(tmp_path / "db")


def test_another_secret_key_is_refused_or_kept_beside(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    for path, text in ((tmp_path, "of then"), (data_dir, "of now")):
        path.mkdir(exist_ok=True)
        (path / "secret_key").write_text(text)
    config = replace(read_config(), data_dir=data_dir, secret_key="of now")
    with pytest.raises(backup_parts.BackupError, match="HELEXA_SECRET_KEY"):
        backup_parts.ensure_key_fits(config, tmp_path)
    for key in ("of then", None):
        backup_parts.ensure_key_fits(replace(config, secret_key=key), tmp_path)
        backup_parts.restore_key(replace(config, secret_key=key), tmp_path)
    assert (data_dir / "secret_key").read_text() == "of then"
    assert (data_dir / "secret_key.before-restore").read_text() == "of now"
    assert not list(data_dir.glob(".*"))
    text = backup_parts.settings_text(
        {"HELEXA_API_KEY": "it's $HOME", "HELEXA_SERVE_KEY": "no", "PATH": "/bin", "REDIS_URL": "r"}
    )
    assert text == "HELEXA_API_KEY='it'\"'\"'s $HOME'\nREDIS_URL=r\n", "as a shell reads them"


@each_case("has_filter", [True, False])  # tarfile's own, which some Pythons lack
@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_nothing_of_an_archive_that_leaves_it_is_extracted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_filter: bool
) -> None:
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    out = tmp_path / "out"
    for name, kind, link in (
        *((name, tarfile.REGTYPE, "") for name in ("../a", "sub/../../a", "/etc/a")),
        ("link", tarfile.SYMTYPE, "a"),
        ("hard", tarfile.LNKTYPE, "../x"),
        ("device", tarfile.CHRTYPE, ""),
        ("sub", tarfile.DIRTYPE, ""),  # these may be extracted
        ("sub/b", tarfile.REGTYPE, ""),
    ):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            for member in (tarfile.TarInfo("a"), tarfile.TarInfo(name)):
                if member.name == name:
                    member.type, member.linkname, member.mode = kind, link, 0o755
                tar.addfile(member)
        content.seek(0)
        with tarfile.open(fileobj=content) as tar:
            if name.startswith("sub") and ".." not in name:
                extract(tar, out)
                assert (out / "a").exists() and (out / name).exists()
                continue
            with pytest.raises(tarfile.TarError, match="no file below"):
                extract(tar, out)
        assert not list(tmp_path.rglob("*")), name

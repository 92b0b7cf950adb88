"""Archives, and refused backups and restores."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
import tarfile
from contextlib import closing
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from helexa_site.backup import commands, sqlite_part
from helexa_site.backup.archive import (
    FORMAT,
    MANIFEST,
    BackupError,
    Manifest,
    extract,
    os_error_text,
    pack,
    unpack,
)
from helexa_site.backup.files_and_secrets import ensure_key_fits, restore_key, settings_text
from helexa_site.bootstrap.data_directory import LOCK_FILE
from helexa_site.config import read_config
from tests.cases import each_case

MANIFEST_OF_A_TEST = Manifest(
    format=FORMAT,
    version="0.1.0",
    made_at="2026-01-01T00:00:00+00:00",
    vendor="sqlite",
    migrations=[["helexa_site", "0001_login_attempts"]],
    rows={},
)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    folder = tmp_path / "content"
    (folder / "database").mkdir(parents=True)
    (folder / "database" / "one").write_text("rows")
    pack(folder, MANIFEST_OF_A_TEST, tmp_path / "backup.tar.gz")
    return tmp_path / "backup.tar.gz"


def repack(archive: Path, folder: Path, name: str, text: str) -> None:
    with tarfile.open(archive) as tar:
        extract(tar, folder)
    (folder / name).write_text(text)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=".")


def test_apps_of_earlier_releases_are_left_out(tmp_path: Path) -> None:
    """Their migrations and tables are not known here any more."""
    kept = replace(MANIFEST_OF_A_TEST, rows={"fleet_neuron": 2}, columns={"fleet_neuron": ["id"]})
    earlier = replace(
        kept,
        migrations=[["axes", "0001_initial"], *kept.migrations],
        rows={"axes_accesslog": 1, **kept.rows},
        columns={"axes_accesslog": ["id"], **kept.columns},
    )
    folder = tmp_path / "content"
    folder.mkdir()
    (folder / "one").write_text("rows")
    pack(folder, earlier, tmp_path / "backup.tar.gz")
    found = unpack(tmp_path / "backup.tar.gz", tmp_path / "out")
    assert replace(found, files={}) == kept
    assert (tmp_path / "out" / "one").read_text() == "rows"


def test_a_changed_file_another_format_and_something_else_are_refused(
    packed: Path, tmp_path: Path
) -> None:
    before = packed.read_bytes()
    for name, text, reason in (
        ("database/one", "others", "database/one is not what was backed up"),
        (MANIFEST, json.dumps({"format": FORMAT + 1}), "is of format"),
    ):
        packed.write_bytes(before)
        repack(packed, tmp_path / name.replace("/", "-"), name, text)
        with pytest.raises(BackupError, match=reason):
            unpack(packed, tmp_path / "out")
    packed.write_bytes(b"\xff\xd8" * 1000)
    with pytest.raises(BackupError, match="no backup"):
        unpack(packed, tmp_path / "out")


def test_a_backup_of_a_newer_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = replace(MANIFEST_OF_A_TEST, migrations=[["fleet", "9999_from_the_future"]])
    with pytest.raises(BackupError, match=r"fleet\.9999_from_the_future is not known"):
        commands.ensure_restorable(newer)
    older = replace(MANIFEST_OF_A_TEST, migrations=[["fleet", "0001_initial"]])
    with pytest.raises(BackupError, match=r"before 0\.2\.0"):
        commands.ensure_restorable(older)
    with pytest.raises(BackupError, match="of postgresql"):
        commands.ensure_restorable(replace(MANIFEST_OF_A_TEST, vendor="postgresql"))
    commands.ensure_restorable(MANIFEST_OF_A_TEST)


def test_nothing_is_restored_under_a_running_serve(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(BackupError, match="stop it first"):
            with commands.without_serve(tmp_path):
                pytest.fail("a serve runs")
    finally:
        os.close(descriptor)
    with commands.without_serve(tmp_path):
        pass


def test_a_damaged_database_is_no_backup(tmp_path: Path) -> None:
    (tmp_path / "broken.sqlite3").write_bytes(b"SQLite format 3\0" + b"\x7f" * 5000)
    (tmp_path / "out").mkdir()
    with pytest.raises(BackupError, match=r"damaged|cannot be copied"):
        sqlite_part.copy_database(tmp_path / "broken.sqlite3", tmp_path / "out")
    place = Path("/data")
    assert os_error_text(OSError(errno.ENOSPC, "No space"), place) == "/data: No space"
    message = os_error_text(PermissionError(errno.EACCES, "Permission denied", "/data/x"), place)
    assert message == "[Errno 13] Permission denied: '/data/x'"


def make_database(path: Path, user: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE users (name TEXT)")
        database.execute("INSERT INTO users VALUES (?)", (user,))


def users(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [name for (name,) in database.execute("SELECT name FROM users")]


@each_case("is_damaged", [False, True])
def test_the_database_that_was_there_is_kept_beside(tmp_path: Path, is_damaged: bool) -> None:
    """Damage is why there are backups. A restore that fails leaves the database there."""
    database = tmp_path / "helexa.sqlite3"
    if is_damaged:
        database.write_bytes(b"no database at all" * 100)
    else:
        make_database(database, "of now")
    before = database.read_bytes()
    with pytest.raises(OSError, match="No such file"):  # of a full disk it is another one
        sqlite_part.put_in_place(tmp_path / "nothing", database)
    assert database.read_bytes() == before
    make_database(tmp_path / sqlite_part.FILE, "of then")
    kept = sqlite_part.put_in_place(tmp_path, database)
    assert users(database) == ["of then"]
    assert kept is not None and (is_damaged or users(kept) == ["of now"])
    assert not is_damaged or kept.read_bytes() == before
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files == {"helexa.sqlite3", kept.name}


def test_a_row_that_refers_to_nothing_is_damage(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "db")) as database, database:
        database.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        database.execute("CREATE TABLE b (a INTEGER REFERENCES a (id))")
        database.execute("INSERT INTO b VALUES (7)")
    with pytest.raises(BackupError, match="a row of b refers to nothing"):
        sqlite_part.whole_rows(tmp_path / "db")


def test_another_secret_key_is_refused_or_kept_beside(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    for path, text in ((tmp_path, "of then"), (data_dir, "of now")):
        path.mkdir(exist_ok=True)
        (path / "secret_key").write_text(text)
    config = replace(read_config(), data_dir=data_dir, secret_key="of now")
    with pytest.raises(BackupError, match="HELEXA_SECRET_KEY"):
        ensure_key_fits(config, tmp_path)
    ensure_key_fits(replace(config, secret_key="of then"), tmp_path)
    ensure_key_fits(replace(config, secret_key=None), tmp_path)
    restore_key(replace(config, secret_key=None), tmp_path)
    assert (data_dir / "secret_key").read_text() == "of then"
    assert (data_dir / "secret_key.before-restore").read_text() == "of now"
    assert not list(data_dir.glob(".*"))


def test_settings_are_written_as_a_shell_reads_them() -> None:
    text = settings_text(
        {"HELEXA_API_KEY": "it's $HOME", "HELEXA_SERVE_KEY": "no", "PATH": "/bin", "REDIS_URL": "r"}
    )
    assert text == "HELEXA_API_KEY='it'\"'\"'s $HOME'\nREDIS_URL=r\n"


@pytest.fixture(params=["with a filter", "without"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``tarfile.data_filter`` and without."""
    if request.param == "without":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


def archive(*members: tarfile.TarInfo) -> tarfile.TarFile:
    content = BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for member in members:
            tar.addfile(member, BytesIO(b"text") if member.isreg() else None)
    content.seek(0)
    return tarfile.open(fileobj=content)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    found.size = 4 if kind == tarfile.REGTYPE else 0
    return found


@pytest.mark.usefixtures("python")
@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_files_and_folders_below_the_folder(tmp_path: Path) -> None:
    folder = member("sub", tarfile.DIRTYPE)
    folder.mode = 0o755
    extract(archive(member("a"), folder, member("sub/b")), tmp_path)
    assert [(tmp_path / name).read_text() for name in ("a", "sub/b")] == ["text"] * 2


@pytest.mark.usefixtures("python")
@each_case(
    "outside",
    [
        member("../a"),
        member("sub/../../a"),
        member("/etc/a"),
        member("link", tarfile.SYMTYPE, "a"),
        member("hard", tarfile.LNKTYPE, "../x"),
        member("device", tarfile.CHRTYPE),
        member("pipe", tarfile.FIFOTYPE),
    ],
    ids=lambda one: f"{one.name} {one.linkname}",
)
def test_nothing_of_an_archive_that_leaves_it_is_extracted(
    outside: tarfile.TarInfo, tmp_path: Path
) -> None:
    with pytest.raises(tarfile.TarError, match="no file below"):
        extract(archive(member("a"), outside), tmp_path / "out")
    assert not list(tmp_path.rglob("*"))

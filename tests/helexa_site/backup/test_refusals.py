"""Archives, and refused backups and restores."""

from __future__ import annotations

import errno
import io
import json
import sqlite3
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helexa_site.backup import commands, databases
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
from helexa_site.bootstrap.data_directory import claimed_data_directory
from helexa_site.config import read_config
from tests.cases import each_case

MADE = Manifest(
    format=FORMAT,
    version="0.1.0",
    made_at="2026-01-01T00:00:00+00:00",
    vendor="sqlite",
    migrations=[["helexa_site", "0001_login_attempts"]],
    rows={"fleet_neuron": 2},
    columns={"fleet_neuron": ["id"]},
)


def packed(tmp_path: Path, manifest: Manifest = MADE) -> Path:
    folder = tmp_path / "content"
    (folder / "database").mkdir(parents=True)
    (folder / "database" / "one").write_text("rows")
    pack(folder, manifest, tmp_path / "backup.tar.gz")
    return tmp_path / "backup.tar.gz"


def test_an_archive_is_read_as_it_was_packed_or_refused(tmp_path: Path) -> None:
    # Of apps of earlier releases the migrations and tables are not known here any more.
    earlier = replace(
        MADE,
        migrations=[["axes", "0001_initial"], *MADE.migrations],
        rows={"axes_accesslog": 1, **MADE.rows},
        columns={"axes_accesslog": ["id"], **MADE.columns},
    )
    archive, content = packed(tmp_path, earlier), tmp_path / "content"
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
        with pytest.raises(BackupError, match=reason):
            unpack(archive, tmp_path / "elsewhere")
    archive.write_text("\xff\xd8" * 1000)
    with pytest.raises(BackupError, match="no backup that can be read"):
        unpack(archive, tmp_path / "elsewhere")


def test_what_cannot_be_restored_here_is_refused(tmp_path: Path) -> None:
    commands.ensure_restorable(MADE)
    for changes, reason in (
        ({"migrations": [["fleet", "9999_future"]]}, r"fleet\.9999_future is not known"),
        ({"migrations": [["fleet", "0001_initial"]]}, r"before 0\.2\.0"),
        ({"vendor": "postgresql"}, "of postgresql"),
    ):
        with pytest.raises(BackupError, match=reason):
            commands.ensure_restorable(replace(MADE, **changes))  # type: ignore[arg-type]
    with claimed_data_directory(tmp_path):
        with pytest.raises(BackupError, match="stop it first"), commands.without_serve(tmp_path):
            pytest.fail("a serve runs")
    with commands.without_serve(tmp_path):
        pass
    place = Path("/data")  # an error of the disk names its place
    assert os_error_text(OSError(errno.ENOSPC, "No space"), place) == "/data: No space"
    message = os_error_text(PermissionError(errno.EACCES, "Permission denied", "/data/x"), place)
    assert message == "[Errno 13] Permission denied: '/data/x'"


def make_database(path: Path, *statements: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def users(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [name for (name,) in database.execute("SELECT name FROM users")]


def make_users(path: Path, user: str) -> None:
    make_database(
        path,
        "PRAGMA journal_mode=WAL",
        "CREATE TABLE users (name TEXT)",
        f"INSERT INTO users VALUES ('{user}')",
    )


def test_a_damaged_database_is_no_backup(tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite3"
    broken.write_bytes(b"SQLite format 3\0" + b"\x7f" * 5000)
    assert databases.has_rows(broken)
    with pytest.raises(BackupError, match=r"damaged|cannot be copied"):
        databases.copy_file(broken, tmp_path)
    with pytest.raises(BackupError, match="damaged"):
        databases.whole_rows(broken)
    make_database(
        tmp_path / "db",
        "CREATE TABLE a (id INTEGER PRIMARY KEY)",
        "CREATE TABLE b (a INTEGER REFERENCES a (id))",
        "INSERT INTO b VALUES (7)",
    )
    with pytest.raises(BackupError, match="a row of b refers to nothing"):
        databases.whole_rows(tmp_path / "db")


@each_case("is_damaged", [False, True])
def test_the_database_that_was_there_is_kept_beside(tmp_path: Path, is_damaged: bool) -> None:
    """Damage is why there are backups. A restore that fails leaves the database there."""
    database = tmp_path / "helexa.sqlite3"
    assert not databases.has_rows(database)
    if is_damaged:
        database.write_bytes(b"no database at all" * 100)
    else:
        make_users(database, "of now")
    before = database.read_bytes()
    with pytest.raises(OSError, match="No such file"):  # of a full disk it is another one
        databases.put_in_place(tmp_path / "nothing", database)
    assert database.read_bytes() == before
    make_users(tmp_path / databases.FILE, "of then")
    kept = databases.put_in_place(tmp_path, database)
    assert users(database) == ["of then"]
    assert kept is not None and (is_damaged or users(kept) == ["of now"])
    assert not is_damaged or kept.read_bytes() == before
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files == {"helexa.sqlite3", kept.name}


def test_another_secret_key_is_refused_or_kept_beside(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    for path, text in ((tmp_path, "of then"), (data_dir, "of now")):
        path.mkdir(exist_ok=True)
        (path / "secret_key").write_text(text)
    config = replace(read_config(), data_dir=data_dir, secret_key="of now")
    with pytest.raises(BackupError, match="HELEXA_SECRET_KEY"):
        ensure_key_fits(config, tmp_path)
    for key in ("of then", None):
        ensure_key_fits(replace(config, secret_key=key), tmp_path)
        restore_key(replace(config, secret_key=key), tmp_path)
    assert (data_dir / "secret_key").read_text() == "of then"
    assert (data_dir / "secret_key.before-restore").read_text() == "of now"
    assert not list(data_dir.glob(".*"))
    text = settings_text(
        {"HELEXA_API_KEY": "it's $HOME", "HELEXA_SERVE_KEY": "no", "PATH": "/bin", "REDIS_URL": "r"}
    )
    assert text == "HELEXA_API_KEY='it'\"'\"'s $HOME'\nREDIS_URL=r\n", "as a shell reads them"


@each_case("has_filter", [True, False])  # tarfile's own, which some Pythons lack
@each_case(
    ("name", "kind", "link"),
    [
        ("sub/b", tarfile.REGTYPE, None),
        ("sub", tarfile.DIRTYPE, None),
        ("../a", tarfile.REGTYPE, ""),
        ("sub/../../a", tarfile.REGTYPE, ""),
        ("/etc/a", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "a"),
        ("hard", tarfile.LNKTYPE, "../x"),
        ("device", tarfile.CHRTYPE, ""),
    ],
)
@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_nothing_of_an_archive_that_leaves_it_is_extracted(
    tmp_path: Path, monkeypatch: Any, name: str, kind: bytes, link: str | None, has_filter: bool
) -> None:
    """``link``: ``None``: the member may be extracted."""
    if not has_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for member in (tarfile.TarInfo("a"), tarfile.TarInfo(name)):
            if member.name == name:
                member.type, member.linkname, member.mode = kind, link or "", 0o755
            tar.addfile(member)
    content.seek(0)
    out = tmp_path / "out"
    with tarfile.open(fileobj=content) as tar:
        if link is None:
            extract(tar, out)
            assert (out / "a").exists() and (out / name).exists()
            return
        with pytest.raises(tarfile.TarError, match="no file below"):
            extract(tar, out)
    assert not list(tmp_path.rglob("*"))

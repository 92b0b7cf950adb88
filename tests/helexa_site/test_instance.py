"""A data directory's id and its key to sign with, and files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helexa_site.config import read_config
from helexa_site.instance import SecretKeyError, instance_id, secret_key
from helexa_site.program import REPOSITORY_DIR
from helexa_site.whole_file import keep_once, write_whole, written_whole


def test_a_copied_directory_is_another_instance(tmp_path: Path) -> None:
    """Both gateways had one id: a command took the other's port for its own."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    found = instance_id(original)
    shutil.copytree(original, copy)
    assert found is not None
    assert instance_id(copy) not in (None, found)
    assert instance_id(original.rename(tmp_path / "moved")) == found
    assert instance_id(tmp_path / "none") is None


SHOW = "from django.conf import settings; print(settings.SECRET_KEY.encode().decode())"
NUM_PROCESSES = 4


def start(data_dir: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {name: os.environ[name] for name in os.environ if name != "HELEXA_SECRET_KEY"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=REPOSITORY_DIR,
        env=environment
        | {"HELEXA_DATA_DIR": str(data_dir), "DJANGO_SETTINGS_MODULE": "helexa_site.settings"}
        | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_processes_that_start_together_agree(tmp_path: Path) -> None:
    data_dir = tmp_path / "var"
    processes = [start(data_dir, "-c", SHOW) for _ in range(NUM_PROCESSES)]
    keys = {process.communicate()[0].strip() for process in processes}
    assert keys == {(data_dir / "secret_key").read_text()}
    assert len(keys.pop()) >= 48
    assert stat.S_IMODE((data_dir / "secret_key").stat().st_mode) == 0o600
    assert [path.name for path in data_dir.iterdir()] == ["secret_key"]


def test_what_is_set_counts_and_is_not_kept(tmp_path: Path) -> None:
    process = start(tmp_path, "-c", SHOW, HELEXA_SECRET_KEY="sesame, and long enough")
    assert process.communicate()[0].strip() == "sesame, and long enough"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "secret_key").touch()
    with pytest.raises(SecretKeyError, match="is empty"):
        secret_key(replace(read_config(), data_dir=tmp_path, secret_key=None))


@pytest.mark.parametrize(
    "command",
    [
        ("manage.py", "gateway", "--port", "1"),
        ("-m", "helexa_site.control"),
        ("-m", "celery", "-A", "helexa_site.celery", "--quiet", "worker", "--pool", "solo"),
    ],
    ids=["gateway", "control", "control as a worker"],
)
def test_who_signs_refuses_to_start_where_none_can_be_kept(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "file").touch()
    process = start(tmp_path / "file" / "var", *command, DATABASE_URL="sqlite://")
    _, complaint = process.communicate()
    assert process.returncode != 0
    assert "no key to sign with" in complaint and "HELEXA_SECRET_KEY" in complaint
    assert "Traceback" not in complaint


@pytest.mark.slow
def test_what_signs_nothing_needs_none_and_makes_none(tmp_path: Path) -> None:
    process = start(tmp_path / "var", "manage.py", "check", DATABASE_URL="sqlite://")
    assert process.wait() == 0
    process.communicate()
    assert not (tmp_path / "var").exists()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_replaces_a_file_and_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text("old")
    path.chmod(0o644)
    write_whole(path, "grün")
    assert path.read_bytes() == "grün".encode()
    assert mode_of(path) == 0o600, "its owner's alone"
    write_whole(path, "new", mode=0o640)
    assert mode_of(path) == 0o640, "whatever the umask"
    assert names_in(tmp_path) == ["key.json"]


def test_a_reader_sees_the_old_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_text("old")
    with written_whole(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_text() == "old"
        assert all(mode_of(one) & 0o077 == 0 for one in tmp_path.iterdir() if one != path)
    assert path.read_text() == "half"


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), written_whole(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["archive"]
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "text")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "file", "text")
    assert names_in(tmp_path) == ["archive", "folder"]


def test_what_is_kept_once_stays(tmp_path: Path) -> None:
    path = tmp_path / "made" / "key"
    keep_once(path, "first")
    keep_once(path, "second")
    assert (path.read_text(), mode_of(path)) == ("first", 0o600)
    assert names_in(path.parent) == ["key"]

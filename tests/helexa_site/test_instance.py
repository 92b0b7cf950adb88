"""An installation: how its command is typed, its id and its key, and files that appear whole."""

from __future__ import annotations

import shutil
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helexa_site import program
from helexa_site.config import read_config
from helexa_site.instance import SecretKeyError, instance_id, secret_key
from helexa_site.program import Installation
from helexa_site.whole_file import keep_once, write_whole, written_whole
from tests.cases import each_case
from tests.helexa_site.processes import python

FILES = {
    Installation.CHECKOUT: ("manage.py", "requirements-dev.txt"),
    Installation.PACKAGES: ("manage.py",),
    Installation.WHEEL: (),
}
NAMES = {
    Installation.CHECKOUT: ("manage.py", "python3 manage.py"),
    Installation.WHEEL: ("helexa", "helexa"),
    Installation.PACKAGES: ("helexa", "sudo helexa --neuron"),
}
"""The program's name, and how its neuron is started."""


@each_case(
    ("kind", "called", "expected"),
    [
        (Installation.CHECKOUT, "manage.py", "python3 manage.py"),
        (Installation.CHECKOUT, "/some where/manage.py", "python3 '/some where/manage.py'"),
        (Installation.CHECKOUT, "/usr/bin/pytest", "python3 manage.py"),
        (Installation.PACKAGES, "/usr/lib/helexa/manage.py", "sudo helexa"),
        # Its own Python is the one in the entry point's first line: python3 may be another.
        (Installation.WHEEL, "/some venv/helexa", "'/some venv/helexa'"),
        (Installation.WHEEL, "/usr/bin/helexa", "helexa"),
        (
            Installation.WHEEL,
            "/site-packages/helexa_site/__main__.py",
            f"{sys.executable} -m helexa_site",
        ),
    ],
)
def test_a_command_to_paste(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: Installation, called: str, expected: str
) -> None:
    for name in FILES[kind]:
        (tmp_path / name).touch()
    monkeypatch.setattr(program, "REPOSITORY_DIR", tmp_path)
    assert (program.program(), program.neuron_program()) == NAMES[kind]
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert program.installation() is kind
    assert program.pasteable_program() == expected


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


def test_the_key_is_made_once_and_one_that_is_set_counts_and_is_not_kept(tmp_path: Path) -> None:
    config = replace(read_config(), data_dir=tmp_path, secret_key="sesame, and long enough")
    assert secret_key(config) == config.secret_key
    assert list(tmp_path.iterdir()) == []
    config = replace(config, secret_key=None)
    made = secret_key(config)
    assert len(made) >= 48 and secret_key(config) == made
    assert mode_of(tmp_path / "secret_key") == 0o600
    (tmp_path / "secret_key").write_text("")
    with pytest.raises(SecretKeyError, match="is empty"):
        secret_key(config)


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
    data_dir = str(tmp_path / "file" / "var")
    done = python(
        *command, unset=["HELEXA_SECRET_KEY"], HELEXA_DATA_DIR=data_dir, DATABASE_URL="sqlite://"
    )
    assert done.returncode != 0
    assert "no key to sign with" in done.stderr and "HELEXA_SECRET_KEY" in done.stderr
    assert "Traceback" not in done.stderr


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text("old")
    path.chmod(0o644)
    with pytest.raises(KeyboardInterrupt), written_whole(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert (path.read_text(), names_in(tmp_path)) == ("old", ["key.json"])
    with written_whole(path) as file:
        file.write("grün".encode())
        file.flush()
        assert path.read_text() == "old", "until the end"
        assert all(mode_of(one) & 0o077 == 0 for one in tmp_path.iterdir() if one != path)
    assert (path.read_text(), mode_of(path)) == ("grün", 0o600), "its owner's alone"
    write_whole(path, "new", mode=0o640)
    assert (path.read_text(), mode_of(path)) == ("new", 0o640), "whatever the umask"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_whole(tmp_path / "folder", "text")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "file", "text")
    assert names_in(tmp_path) == ["folder", "key.json"]


def test_what_is_kept_once_stays(tmp_path: Path) -> None:
    path = tmp_path / "made" / "key"
    keep_once(path, "first")
    keep_once(path, "second")
    assert (path.read_text(), mode_of(path)) == ("first", 0o600)
    assert names_in(path.parent) == ["key"]

"""Test files' asserts are rewritten once, and pytest finds what was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.rewriting import keep, keep_share, rewritten_files


@pytest.fixture(autouse=True)
def bytecode_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


def kept_in(directory: Path) -> set[str]:
    return {kept.name.partition(".")[0] for kept in directory.glob("__pycache__/*.pyc")}


def process(config: pytest.Config, number: int, count: int, *arguments: str) -> pytest.Config:
    about = {"workerid": f"gw{number}", "workercount": count}
    made: Any = SimpleNamespace(
        workerinput=about,
        args=arguments,
        stash=config.stash,
        getini=config.getini,
        get_verbosity=config.get_verbosity,
    )
    return cast(pytest.Config, made)


def test_each_process_rewrites_its_share(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    names = {f"test_{letter}" for letter in "abcde"}
    for name in names:
        (tmp_path / f"{name}.py").write_text("def test_it():\n    assert 1 + 1 == 2\n")
    (tmp_path / "support.py").touch()
    keep_share(process(pytestconfig, 0, 2, str(tmp_path)))
    assert kept_in(tmp_path) == {"test_a", "test_c", "test_e"}
    keep_share(process(pytestconfig, 1, 2, str(tmp_path)))
    assert kept_in(tmp_path) == names


def test_one_that_takes_a_lost_ones_place_has_its_share(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    for letter in "ab":
        (tmp_path / f"test_{letter}.py").touch()
    keep_share(process(pytestconfig, 3, 2, str(tmp_path)))
    assert kept_in(tmp_path) == {"test_b"}


def test_what_is_picked_is_rewritten_alone(tmp_path: Path) -> None:
    file = tmp_path / "test_a.py"
    file.touch()
    (tmp_path / "test_b.py").touch()
    assert list(rewritten_files([f"{file}::test_it", str(tmp_path / "gone.py")])) == [file]


def test_a_file_that_is_none_is_left_to_its_import(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    (tmp_path / "test_a.py").write_text("def test_it(:\n")
    (tmp_path / "test_b.py").write_bytes(b"\xff\0")
    keep_share(process(pytestconfig, 0, 1, str(tmp_path)))
    assert kept_in(tmp_path) == set()


def test_pytest_takes_what_was_kept(
    pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would put its own in the place of one that it could not use."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    file = tmp_path / "test_a.py"
    file.write_text("def test_it():\n    assert [1] == [2]\n")
    kept = keep(pytestconfig, file)
    before = kept.stat()
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q"),
            *("-p", "no:cacheprovider", "-p", "no:django", "-p", "no:xdist"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert "At index 0 diff: 1 != 2" in run.stdout, run.stdout
    assert list(kept.parent.iterdir()) == [kept]
    assert (kept.stat().st_ino, kept.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

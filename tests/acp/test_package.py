"""The package of its own: its metadata, and that it installs and starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import helexa_acp
from inference.version import VERSION
from tests.acp.bridge import PACKAGE_DIR, environment
from tests.cases import each_case

REPOSITORY_DIR = PACKAGE_DIR.parent


def metadata() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((PACKAGE_DIR / "pyproject.toml").read_text())
    return project


def test_what_it_needs_is_what_is_tested() -> None:
    files = ("requirements-dev.txt", "requirements-gateway.txt")
    pinned = [line for name in files for line in (REPOSITORY_DIR / name).read_text().splitlines()]
    assert set(metadata()["project"]["dependencies"]) <= set(pinned)


def test_every_package_is_in_it() -> None:
    folders = {path.parent for path in (PACKAGE_DIR / "helexa_acp").rglob("*.py")}
    names = {".".join(folder.relative_to(PACKAGE_DIR).parts) for folder in folders}
    assert set(metadata()["tool"]["setuptools"]["packages"]) == names


def test_its_version_is_the_servers() -> None:
    assert metadata()["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "helexa_acp.__version__"
    }
    assert helexa_acp.__version__ == VERSION


@each_case(
    ("arguments", "exit_code", "expected"),
    [
        (["--help"], 0, "usage: helexa-acp"),
        (["--version"], 0, f"helexa-acp {helexa_acp.__version__}"),
        (["--modle", "x"], 2, "it takes no '--modle'"),
        ([], 1, "an editor starts this"),  # with nothing to read
    ],
)
def test_it_prints_what_it_is_where_no_editor_starts_it(
    tmp_path: Path, arguments: list[str], exit_code: int, expected: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "helexa_acp", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(tmp_path),
        timeout=300,
        check=False,
    )
    assert done.returncode == exit_code
    assert expected in (done.stdout if exit_code == 0 else done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.limit_s(600)
def test_it_installs_and_starts(tmp_path: Path) -> None:
    """Needs a package registry."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    # A copy: what builds it leaves its work beside the sources.
    sources = shutil.copytree(PACKAGE_DIR, tmp_path / "acp")
    install = [str(venv / "bin" / "pip"), "install", "-q", str(sources)]
    subprocess.run(install, check=True, stdin=subprocess.DEVNULL)
    started = environment(tmp_path)
    del started["PYTHONPATH"]
    done = subprocess.run(
        [str(venv / "bin" / "helexa-acp")],
        env=started,
        input='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n',
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert '"name":"helexa-acp"' in done.stdout

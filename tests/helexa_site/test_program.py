"""How the command is typed, by the files that each kind of installation has."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from helexa_site import program
from helexa_site.program import Installation

FILES = {
    Installation.CHECKOUT: ("manage.py", "requirements-dev.txt"),
    Installation.PACKAGES: ("manage.py",),
    Installation.WHEEL: (),
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def lay_out(kind: Installation) -> None:
        for name in FILES[kind]:
            (tmp_path / name).touch()
        monkeypatch.setattr(program, "REPOSITORY_DIR", tmp_path)

    return lay_out


@pytest.mark.parametrize(
    ("kind", "called", "expected"),
    [
        (Installation.CHECKOUT, "manage.py", "python3 manage.py"),
        (Installation.CHECKOUT, "/some where/manage.py", "python3 '/some where/manage.py'"),
        (Installation.CHECKOUT, "/usr/bin/pytest", "python3 manage.py"),
        (Installation.PACKAGES, "/usr/lib/helexa/manage.py", "sudo helexa"),
    ],
)
def test_a_command_to_paste(
    install, monkeypatch: pytest.MonkeyPatch, kind: Installation, called: str, expected: str
) -> None:
    install(kind)
    monkeypatch.setattr(sys, "argv", [called])
    assert program.installation() is kind
    assert program.pasteable_program() == expected


def test_a_wheel_is_called_by_its_entry_point(
    install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own Python is the one in the entry point's first line: python3 may be another."""
    install(Installation.WHEEL)
    entry = tmp_path / "some venv" / "helexa"
    monkeypatch.setattr(sys, "argv", [str(entry)])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert program.pasteable_program() == f"'{entry}'"
    monkeypatch.setattr(shutil, "which", lambda name: str(entry))
    assert program.pasteable_program() == "helexa"
    monkeypatch.setattr(sys, "argv", ["/site-packages/helexa_site/__main__.py"])
    assert program.pasteable_program() == f"{sys.executable} -m helexa_site"


@pytest.mark.parametrize(
    ("kind", "name", "neuron"),
    [
        (Installation.CHECKOUT, "manage.py", "python3 manage.py"),
        (Installation.WHEEL, "helexa", "helexa"),
        (Installation.PACKAGES, "helexa", "sudo helexa --neuron"),
    ],
)
def test_names(install, kind: Installation, name: str, neuron: str) -> None:
    install(kind)
    assert (program.program(), program.neuron_program()) == (name, neuron)

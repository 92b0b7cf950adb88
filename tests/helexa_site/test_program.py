"""How the command is typed, by the files of each installation; and where no database is set up."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from helexa_site import program
from helexa_site.program import Installation
from tests.cases import each_case

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

"""Exact pins, local versions, markers, extras: what this interpreter has of what a file asks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helexa_site.bootstrap.installing import requirements
from helexa_site.bootstrap.installing.environment import REPOSITORY_DIR
from helexa_site.bootstrap.installing.requirements import (
    Requirement,
    is_installed,
    marker_applies,
    read_requirements,
    unmet_requirements,
)
from tests.cases import each_case


@each_case("name", ["requirements.txt", "requirements-dev.txt"])
def test_our_own_files_are_understood_and_met(name: str) -> None:
    assert unmet_requirements(REPOSITORY_DIR / name) == []


def test_reads_what_our_files_hold(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("one==1.0\n")
    file = tmp_path / "all.txt"
    file.write_text(
        "# a comment\n-r base.txt\n\n"
        "two[a,b]==2.0+cpu  # why\n"
        'three==3 ; sys_platform == "no-such-platform"\n'
        f'four==4; sys_platform == "{sys.platform}" and python_version >= "3.11"\n'
    )
    assert [str(wanted) for wanted in read_requirements(file)] == [
        "one==1.0",
        "two[a,b]==2.0+cpu",
        "four==4",
    ]


@each_case("line", ["one>=1.0", "one", "one==1.0,!=2", "git+https://example.org/x"])
def test_a_line_that_is_no_exact_pin_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "all.txt").write_text(f"ok==1\n{line}\n")
    with pytest.raises(ValueError, match=r"all\.txt:2"):
        list(read_requirements(tmp_path / "all.txt"))


@each_case(
    ("installed", "wanted", "is_met"),
    [
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.0", "2.13.0", True),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13.0+cu130", "2.13.0+cpu", False),
        ("2.13.1", "2.13.0", False),
        (None, "2.13.0", False),
    ],
)
def test_versions(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, wanted: str, is_met: bool
) -> None:
    monkeypatch.setattr(requirements, "installed_version", lambda name: installed)
    assert is_installed(Requirement("sample", wanted)) is is_met


def test_an_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = next(
        found
        for found in read_requirements(REPOSITORY_DIR / "requirements.txt")
        if found.name == "psycopg"
    )
    assert is_installed(wanted)
    real = requirements.installed_version
    monkeypatch.setattr(
        requirements,
        "installed_version",
        lambda name: None if name == "psycopg-binary" else real(name),
    )
    assert not is_installed(wanted)


@each_case(
    ("marker", "applies"),
    [
        (None, True),
        ('python_version < "3.100"', True),
        ('python_version < "3.9"', False),
        ('"3.9" > python_version', False),
        ('sys_platform == "x" or python_version >= "3"', True),
        ('extra == "binary"', False),
    ],
)
def test_markers(marker: str | None, applies: bool) -> None:
    assert marker_applies(marker) is applies


@each_case("marker", ["nobody_knows == 'x'", "python_version in '3.11'", "f()"])
def test_a_marker_that_is_not_understood_is_reported(marker: str) -> None:
    with pytest.raises(ValueError, match="marker not understood"):
        marker_applies(marker)

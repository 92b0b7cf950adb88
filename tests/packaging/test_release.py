"""What a release is made with: its notes in rpm's form, the audit, and the bill of materials."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helexa_site.bootstrap.environment import applying, installed_version, pins_of
from tests.cases import each_case

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
NOTES = """\
# Changelog

All notable changes.

## Unreleased

### Added

#### Queues

- Share 50 % of the queue
  (`max_queue_share_percent`).

## 0.2.0 - 2026-12-01

- Second.

## 0.1.0 - 2026-11-22

The first release.
"""
UNRELEASED = """\
* Wed Nov 25 2026 helexa - 0.2.0+git20261225.abc-1
Added:

Queues:

- Share 50 %% of the queue
  (`max_queue_share_percent`)."""
RELEASED = """\
* Tue Dec 01 2026 helexa - 0.2.0-1
- Second.

* Sun Nov 22 2026 helexa - 0.1.0-1
The first release."""


def test_a_build_begins_with_what_is_not_released_and_a_release_with_its_own_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(PACKAGING))
    release_notes = importlib.import_module("release_notes")

    def changelog(*, version: str = "0.2.0", is_tagged: bool) -> str:
        release = SimpleNamespace(
            version=version,
            is_tagged=is_tagged,
            unix_s=1795609863,
            package_version="0.2.0+git20261225.abc",
        )
        return str(release_notes.rpm_changelog(NOTES, release))

    assert changelog(is_tagged=False) == f"{UNRELEASED}\n\n{RELEASED}"
    assert changelog(is_tagged=True) == RELEASED
    with pytest.raises(release_notes.NotesError, match=r"'## 0\.3\.0 - YYYY-MM-DD'"):
        changelog(version="0.3.0", is_tagged=True)


CLEAN = "No known vulnerabilities found"
FOUND = "Found 2 known vulnerabilities in 1 package"
UNANSWERED = (
    "No known vulnerabilities found\namqp  Dependency not found on PyPI and could not be audited"
)


def audit(folder: Path, output: str | None, code: int = 0) -> int:
    if output is not None:
        program = folder / "pip-audit"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
        program.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run((PACKAGING / "audit",), env=environment, capture_output=True)
    return done.returncode


@each_case(
    ("output", "code", "expected"),
    [(CLEAN, 0, 0), (FOUND, 1, 1), (UNANSWERED, 0, 75), ("no such host", 1, 75)],
)
def test_green_is_only_what_was_looked_up(
    tmp_path: Path, output: str, code: int, expected: int
) -> None:
    assert audit(tmp_path, output, code) == expected


def test_a_python_without_requirements_is_named_another(tmp_path: Path) -> None:
    built = subprocess.run(
        (sys.executable, "-S", str(PACKAGING / "build"), "--out", str(tmp_path / "dist")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 1
    assert len(built.stderr.splitlines()) == 1
    assert ".venv/bin/python packaging/build" in built.stderr
    assert not (tmp_path / "dist").exists()


def test_it_names_what_is_needed_and_what_that_needs(tmp_path: Path) -> None:
    out = tmp_path / "helexa.cdx.json"
    command = (sys.executable, str(ROOT / "packaging" / "sbom"), "--out", str(out))
    subprocess.run(command, check=True, timeout=120)
    document = json.loads(out.read_text())
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    versions = {
        one["purl"].removeprefix("pkg:pypi/").partition("@")[0]: one["version"]
        for one in document["components"]
    }
    assert len(versions) == len(document["components"])
    for wanted in applying(pins_of(ROOT / "requirements.txt")):
        name = wanted.name.lower().replace("_", "-")
        assert versions[name] == installed_version(wanted.name)
    # Of Celery's and of torch's.
    assert {"kombu", "sympy"} <= versions.keys()
    assert "pytest" not in versions
    licensed = [one for one in document["components"] if one.get("licenses")]
    assert len(licensed) > 0.9 * len(versions)

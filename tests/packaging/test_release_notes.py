"""An RPM's %changelog has the release notes' entries, in rpm's form."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
LATER_THAN_ANY_RELEASE = 4102444800
SCRIPT = """\
import sys
from types import SimpleNamespace
sys.path.insert(0, {folder!r})
from release_notes import NotesError, rpm_changelog
release = SimpleNamespace(
    version={version!r}, is_tagged={is_tagged}, unix_s={unix_s},
    package_version="0.2.0+git20261225.abc",
)
try:
    print(rpm_changelog(sys.stdin.read(), release))
except NotesError as error:
    sys.exit(str(error))
"""


def changelog(
    notes: str, *, version: str = "0.2.0", is_tagged: bool, unix_s: int = 1795609863
) -> tuple[str, str]:
    """What it printed, and its error. In a process of its own, as packaging/ is no package."""
    folder = str(ROOT / "packaging")
    script = SCRIPT.format(folder=folder, version=version, is_tagged=is_tagged, unix_s=unix_s)
    done = subprocess.run(
        (sys.executable, "-c", script), input=notes, capture_output=True, text=True, check=False
    )
    return done.stdout.strip(), done.stderr.strip()


def test_a_build_between_releases_begins_with_what_is_not_released() -> None:
    assert changelog(NOTES, is_tagged=False) == (f"{UNRELEASED}\n\n{RELEASED}", "")


def test_a_release_begins_with_its_own_notes() -> None:
    assert changelog(NOTES, is_tagged=True) == (RELEASED, "")


def test_a_release_without_notes_is_refused() -> None:
    written, error = changelog(NOTES, version="0.3.0", is_tagged=True)
    assert written == "" and "'## 0.3.0 - YYYY-MM-DD'" in error


def test_rpm_reads_this_projects_notes(tmp_path: Path) -> None:
    if shutil.which("rpmspec") is None:
        pytest.skip("there is no rpmspec on this machine")
    notes = (ROOT / "CHANGELOG.md").read_text()
    written, error = changelog(notes, is_tagged=False, unix_s=LATER_THAN_ANY_RELEASE)
    assert error == ""
    spec = tmp_path / "x.spec"
    head = "Name: x\nVersion: 1\nRelease: 1\nSummary: x\nLicense: x\n%description\n%files\n"
    spec.write_text(f"{head}%changelog\n{written}\n")
    read = subprocess.run(
        ("rpmspec", "--query", "--queryformat", "[%{CHANGELOGNAME}\\n]", str(spec)),
        check=True,
        capture_output=True,
        text=True,
    )
    assert "helexa - 0.1.0-1" in read.stdout
    assert "warning" not in read.stderr

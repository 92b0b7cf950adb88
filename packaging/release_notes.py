"""The release notes of CHANGELOG.md as an RPM's %changelog. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime

from release import Release

HEADING = re.compile(
    r"^## (?:(?P<unreleased>Unreleased)|(?P<version>\d+\.\d+\.\d+) - (?P<date>\d{4}-\d\d-\d\d))$",
    re.MULTILINE,
)

_SUBHEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class NotesError(ValueError):
    """The notes lack the release that is built."""


def rpm_changelog(notes: str, release: Release) -> str:
    """An entry for each release, newest first. Unreleased changes are the entry of a build
    between releases, dated as its commit. Raises ``NotesError``."""
    entries = list(_entries(notes, release))
    if release.is_tagged and not any(version == release.version for version, _, _ in entries):
        raise NotesError(f"CHANGELOG.md has no heading '## {release.version} - YYYY-MM-DD'")
    return "\n\n".join(
        f"* {_day(moment)} helexa - {version}-1\n{text}" for version, moment, text in entries
    )


def _entries(notes: str, release: Release) -> Iterator[tuple[str, date, str]]:
    """Version, day and text of each."""
    headings = list(HEADING.finditer(notes))
    ends = [heading.start() for heading in headings[1:]] + [len(notes)]
    for heading, end in zip(headings, ends, strict=True):
        text = _rpm_text(notes[heading.end() : end])
        if not heading["unreleased"]:
            yield heading["version"], date.fromisoformat(heading["date"]), text
        elif text and not release.is_tagged:
            moment = datetime.fromtimestamp(release.unix_s, UTC).date()
            yield release.package_version, moment, text


def _rpm_text(notes: str) -> str:
    """rpm expands macros after ``%`` and leaves out lines that begin with ``#``."""
    return _SUBHEADING.sub(r"\1:", notes.strip()).replace("%", "%%")


def _day(day: date) -> str:
    """Returns the date as rpm reads it, in English whatever the locale is."""
    weekday, month, number, _, year = day.ctime().split()
    return f"{weekday} {month} {number:0>2} {year}"

"""RPM packages, by rpmbuild, with the release notes of CHANGELOG.md as their %changelog."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from release import Release
from staging import Package

SPEC = """\
Name: {name}
Version: {version}
Release: 1
Summary: {summary}
License: GPL-3.0-or-later
BuildArch: noarch
AutoReqProv: no
{relations}

%description
helexa turns the machines you own into one private AI endpoint. The first start of a unit makes its
Python environment in /var/lib, with its progress in the journal.

%install
cp -a {root}/. %{{buildroot}}/

{scripts}
%files
%defattr(-,root,root,-)
{files}

%changelog
{changelog}
"""
POST = """\
%pre
getent passwd {user} >/dev/null || useradd --system --user-group --home-dir /var/lib/{user} \\
    --no-create-home --shell /sbin/nologin {user}

%post
install -d -m 0700 -o {user} -g {user} /var/lib/{user}
[ ! -d /run/systemd/system ] || systemctl daemon-reload || :

%preun
if [ $1 -eq 0 ] && [ -d /run/systemd/system ]; then systemctl disable --now {units} || :; fi

%postun
if [ $1 -ge 1 ] && [ -d /run/systemd/system ]; then systemctl try-restart {units} || :; fi

"""
NAMES = {
    "python3 (>= 3.11)": "python3 >= 3.11",
    "python3-venv": None,
    "adduser": "shadow-utils",
    "g++": "gcc-c++",
    "python3-dev": "python3-devel",
    "redis-server": "(redis or valkey)",
}
"""Debian's names as Fedora has them; ``None``: it comes with another."""


HEADING = re.compile(
    r"^## (?:(?P<unreleased>Unreleased)|(?P<version>\d+\.\d+\.\d+) - (?P<date>\d{4}-\d\d-\d\d))$",
    re.MULTILINE,
)
SUBHEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def missing_tool() -> str | None:
    return None if shutil.which("rpmbuild") else "rpmbuild"


def build(
    source: Path, packages: Sequence[Package], release: Release, out: Path, scratch: Path
) -> Iterator[Path]:
    changelog = rpm_changelog((source / "CHANGELOG.md").read_text(encoding="utf-8"), release)
    for package in packages:
        top = scratch / "rpm" / package.name
        top.mkdir(parents=True)
        spec = top / f"{package.name}.spec"
        spec.write_text(spec_text(package, release, changelog))
        subprocess.run(
            [
                *("rpmbuild", "-bb", "--quiet", "--define", f"_topdir {top}"),
                *("--define", "_build_id_links none", "--define", "__brp_mangle_shebangs %{nil}"),
                *("--define", "_buildhost localhost", "--define", "__os_install_post %{nil}"),
                *("--define", "use_source_date_epoch_as_buildtime 1"),
                *("--define", "clamp_mtime_to_source_date_epoch 1", str(spec)),
            ],
            check=True,
            env=os.environ | {"SOURCE_DATE_EPOCH": str(release.unix_s)},
        )
        for built in sorted((top / "RPMS").rglob("*.rpm")):
            target = out / built.name
            shutil.copy(built, target)
            yield target


def spec_text(package: Package, release: Release, changelog: str) -> str:
    version = release.package_version
    relations = []
    for name in package.depends:
        known = NAMES.get(name, f"{name} = {version}-1" if name == "helexa-common" else name)
        if known is not None:
            relations.append(f"Requires: {known}")
    relations += [f"Recommends: {NAMES.get(name, name)}" for name in package.recommends]
    if package.user:
        relations += [f"Provides: user({package.user})", f"Provides: group({package.user})"]
    scripts = ""
    if package.user:
        scripts = POST.format(user=package.user, units=" ".join(package.units))
    files = [
        _line(path, package)
        for path in sorted(package.root.rglob("*"))
        if path.is_file() or path.is_symlink()
    ]
    return SPEC.format(
        name=package.name,
        version=version,
        summary=package.summary,
        relations="\n".join(relations),
        root=package.root,
        scripts=scripts,
        files="\n".join(files),
        changelog=changelog,
    )


def _line(path: Path, package: Package) -> str:
    installed = f'"/{path.relative_to(package.root).as_posix()}"'
    if installed.startswith('"/etc/'):
        return f"%config(noreplace) %attr(0640, root, {package.user}) {installed}"
    return installed


class NotesError(ValueError):
    """The notes lack the release that is built."""


def rpm_changelog(notes: str, release: Release) -> str:
    """Newest first. Unreleased changes are the entry of a build between releases. Raises
    ``NotesError``."""
    entries = list(_entries(notes, release))
    if release.is_tagged and not any(version == release.version for version, _, _ in entries):
        raise NotesError(f"CHANGELOG.md has no heading '## {release.version} - YYYY-MM-DD'")
    return "\n\n".join(
        f"* {_day(moment)} helexa - {version}-1\n{text}" for version, moment, text in entries
    )


def _entries(notes: str, release: Release) -> Iterator[tuple[str, date, str]]:
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
    return SUBHEADING.sub(r"\1:", notes.strip()).replace("%", "%%")


def _day(day: date) -> str:
    """Returns the date as rpm reads it, in English whatever the locale is."""
    weekday, month, number, _, year = day.ctime().split()
    return f"{weekday} {month} {number:0>2} {year}"

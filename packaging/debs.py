"""Debian packages, by dpkg-deb."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from release import Release
from staging import Package

MAINTAINER = "helexa <helexa@localhost>"
POSTINST = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
{user}    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload || true
        # An upgrade; a first install waits for its settings.
        if [ -n "$2" ]; then systemctl try-restart {units} || true; fi
    fi
fi
"""
ADD_USER = """\
    if ! getent passwd {user} >/dev/null; then
        adduser --quiet --system --group --home /var/lib/{user} --no-create-home {user}
    fi
    install -d -m 0700 -o {user} -g {user} /var/lib/{user}
    chgrp {user} /etc/{user}/{user}.env
    chmod 0640 /etc/{user}/{user}.env
"""
PRERM = """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now {units} || true
fi
"""
POSTRM = """\
#!/bin/sh
set -e
if [ "$1" = purge ]; then
    rm -rf /var/lib/{user} /etc/{user}
    if getent passwd {user} >/dev/null; then deluser --quiet --system {user} || true; fi
fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
"""


def missing_tool() -> str | None:
    return None if shutil.which("dpkg-deb") else "dpkg-deb"


def build(
    source: Path, packages: Sequence[Package], release: Release, out: Path, scratch: Path
) -> Iterator[Path]:
    for package in packages:
        root = scratch / "deb" / package.name
        shutil.copytree(package.root, root, copy_function=shutil.copy2)
        _control(root, package, release)
        path = out / f"{package.name}_{release.package_version}_all.deb"
        subprocess.run(
            ("dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(path)),
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"SOURCE_DATE_EPOCH": str(release.unix_s)},
        )
        yield path


def _control(root: Path, package: Package, release: Release) -> None:
    folder = root / "DEBIAN"
    folder.mkdir(mode=0o755)
    depends = [
        f"{name} (= {release.package_version})" if name == "helexa-common" else name
        for name in package.depends
    ]
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    lines = [
        f"Package: {package.name}",
        f"Version: {release.package_version}",
        "Section: net",
        "Priority: optional",
        "Architecture: all",
        f"Maintainer: {MAINTAINER}",
        f"Installed-Size: {size}",
        f"Depends: {', '.join(depends)}",
        *([f"Recommends: {', '.join(package.recommends)}"] if package.recommends else []),
        f"Description: {package.summary}",
        " helexa turns the machines you own into one private AI endpoint. The first start of a",
        " unit makes its Python environment in /var/lib, with its progress in the journal.",
    ]
    (folder / "control").write_text("\n".join(lines) + "\n")
    if package.user is None:
        return
    (folder / "conffiles").write_text(f"/etc/{package.user}/{package.user}.env\n")
    words = {"user": package.user, "units": " ".join(package.units)}
    scripts = {
        "postinst": POSTINST.format(user=ADD_USER.format(**words), units=words["units"]),
        "prerm": PRERM.format(**words),
        "postrm": POSTRM.format(**words),
    }
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)

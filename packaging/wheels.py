"""Wheels, by setuptools, without a network: helexa and helexa-acp."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from release import Release
from staging import Package

BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


def missing_tool() -> str | None:
    return None if importlib.util.find_spec("setuptools") else "setuptools"


def build(
    source: Path, packages: Sequence[Package], release: Release, out: Path, scratch: Path
) -> Iterator[Path]:
    for name in (".", "acp"):
        folder = scratch / "wheel" / name
        shutil.copytree(source if name == "." else source / name, folder, dirs_exist_ok=True)
        if name == ".":
            _set_version(folder / "pyproject.toml", release)
        done = subprocess.run(
            (sys.executable, "-c", BUILD, str(out)),
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            env=os.environ | {"SOURCE_DATE_EPOCH": str(release.unix_s)},
        )
        yield out / done.stdout.strip().splitlines()[-1]


def _set_version(project: Path, release: Release) -> None:
    """Between releases the code keeps the last number; the wheel is named after its commit."""
    text = project.read_text()
    for found, wanted in (
        ('dynamic = ["version", ', f'version = "{release.wheel_version}"\ndynamic = ['),
        ('version = { attr = "inference.version.VERSION" }\n', ""),
    ):
        assert text.count(found) == 1, f"{found!r} stands once in pyproject.toml"
        text = text.replace(found, wanted)
    project.write_text(text)

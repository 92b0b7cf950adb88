"""The release of helexa, and the source that this copy was made of.

    a package     inference/build.json, written when it was built
    a checkout    git, asked once
    neither       "unknown"

Standard library only.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from inference.environment import Role, environment_for

VERSION = "0.2.0"
"""Its one place; ``scripts/release`` changes it."""

HERE = Path(__file__).resolve().parent
BUILD_FILE = HERE / "build.json"
UNKNOWN = "unknown"
SHORT_SHA = 12
GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    git_sha: str = UNKNOWN
    git_sha_long: str = ""
    git_dirty: bool = False
    build_timestamp: str = ""
    """The commit's time, so that the same source makes the same package."""


@cache
def this_build(build_file: Path = BUILD_FILE, checkout: Path = HERE.parent) -> Build:
    """Never raises."""
    try:
        fields: dict[str, Any] = json.loads(build_file.read_text())
        return Build(**fields)
    except (OSError, ValueError, TypeError):
        return build_of_checkout(checkout)


def build_of_checkout(checkout: Path) -> Build:
    if not (checkout / ".git").exists():
        return Build()
    sha = _git(checkout, "rev-parse", "HEAD")
    if sha is None:
        return Build()
    changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    return Build(
        git_sha=sha[:SHORT_SHA],
        git_sha_long=sha,
        git_dirty=bool(changed),
        build_timestamp=_git(checkout, "show", "--no-patch", "--format=%cI", "HEAD") or "",
    )


def version_object(build: Build) -> dict[str, Any]:
    """Returns the build in the original's fields; ours are what it runs on."""
    return {
        "package_version": VERSION,
        "git_sha": build.git_sha,
        "git_sha_long": build.git_sha_long,
        "git_dirty": build.git_dirty,
        "build_timestamp": build.build_timestamp,
        "python_version": platform.python_version(),
        "torch_version": _installed("torch"),
        "target": f"{platform.machine()}-{platform.system().lower()}",
        "features": [],
    }


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(checkout: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ("git", "-C", str(checkout), *words),
            stdin=subprocess.DEVNULL,
            env=environment_for(Role.OTHER, os.environ),
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

"""Which release a build is: from git's tag and the code's version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from inference.version import VERSION, Build, build_of_checkout  # noqa: E402

TAG = re.compile(r"v\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Release:
    version: str
    is_tagged: bool
    build: Build
    unix_s: int
    """The commit's time: files in packages are dated by it."""

    @property
    def package_version(self) -> str:
        """dpkg and rpm sort a build after a release above the release."""
        if self.is_tagged:
            return self.version
        moment = re.sub(r"\D", "", self.build.build_timestamp)[:14]
        return f"{self.version}+git{moment}.{self.build.git_sha[:7]}"

    @property
    def wheel_version(self) -> str:
        return self.version if self.is_tagged else f"{self.version}+g{self.build.git_sha[:7]}"

    def build_json(self) -> str:
        return json.dumps(asdict(self.build), indent=2, sort_keys=True) + "\n"


def read_release(root: Path = ROOT) -> Release:
    """Ends the process where a tag and the code disagree."""
    build = build_of_checkout(root)
    if not build.git_sha_long:
        sys.exit(f"{root} is no git checkout")
    tags = [tag for tag in git(root, "tag", "--points-at", "HEAD").split() if TAG.fullmatch(tag)]
    if tags and tags != [f"v{VERSION}"]:
        sys.exit(f"HEAD is tagged {', '.join(tags)}, and the code has {VERSION}")
    if build.git_dirty:
        print("what is changed and not committed is not in these packages", file=sys.stderr)
    clean = Build(
        git_sha=build.git_sha,
        git_sha_long=build.git_sha_long,
        git_dirty=False,
        build_timestamp=build.build_timestamp,
    )
    unix_s = int(git(root, "show", "--no-patch", "--format=%ct", "HEAD"))
    return Release(version=VERSION, is_tagged=bool(tags), build=clean, unix_s=unix_s)


def git(root: Path, *words: str) -> str:
    done = subprocess.run(("git", "-C", str(root), *words), check=True, capture_output=True)
    return done.stdout.decode().strip()

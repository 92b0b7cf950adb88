"""``scripts/release`` in a clone: what it makes, and what it refuses without changing anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.version import VERSION

REPOSITORY = Path(__file__).resolve().parent.parent
NEXT = "97.0.0"
ACP = "acp/helexa_acp/__init__.py"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
"""``scripts/in-environment`` finds this Python first."""
ENTRY = "## Unreleased\n\n### Added\n\n- A thing.\n"
FILL = """
import pathlib, sys
folder, release = sys.argv[1:]
from inference.version import VERSION
(pathlib.Path(folder) / f"{release}.sqlite.tar.gz").write_text(VERSION)
"""
"""Stands in the place of ``tests/upgrade/fill.py``, which takes a minute."""


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=helexa", "-c", "user.email=helexa@localhost")
    done = subprocess.run(
        ("git", "-C", str(root), *who, *words), check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout's files as they are now, committed in a repository of their own."""
    origin = tmp_path_factory.mktemp("origin")
    listed = git(REPOSITORY, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    wanted = ("scripts/", "packaging/", ACP, "inference/version.py", "inference/environment.py")
    contents = {
        path: (REPOSITORY / path).read_bytes()
        for path in listed.split("\0")
        if (path.startswith((*wanted, "CHANGELOG.md", ".gitignore")) or "/migrations/" in path)
        and (REPOSITORY / path).is_file()
    }
    head, _, rest = contents["CHANGELOG.md"].decode().partition("## Unreleased")
    released = rest.partition("\n## 0.1.0")[2]
    contents["CHANGELOG.md"] = f"{head}{ENTRY}\n## 0.1.0{released}".encode()
    contents["tests/upgrade/fill.py"] = FILL.encode()
    for path, content in contents.items():
        (origin / path).parent.mkdir(parents=True, exist_ok=True)
        (origin / path).write_bytes(content)
        if path.startswith("scripts/"):
            (origin / path).chmod(0o755)
    git(origin, "init", "--quiet")
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "-m", "release: what is there")
    return origin


@pytest.fixture
def clone(origin: Path, tmp_path: Path) -> Iterator[Path]:
    git(tmp_path, "clone", "--quiet", str(origin), "clone")
    for name, value in (("user.name", "helexa"), ("user.email", "helexa@localhost")):
        git(tmp_path / "clone", "config", name, value)
    refs = git(origin, "for-each-ref")
    yield tmp_path / "clone"
    assert git(origin, "for-each-ref") == refs, "something was pushed"


def released(clone: Path, version: str = NEXT, *, suite: str = "true") -> str:
    """What it printed on standard error; empty: it made the release."""
    done = subprocess.run(
        (str(clone / "scripts" / "release"), version, "--suite", suite),
        env=os.environ | {"PYTHONPATH": str(clone), "VIRTUAL_ENV": sys.prefix, "PATH": PATH},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (done.stderr == ""), done
    return done.stderr


def refused(clone: Path, version: str = NEXT, *, suite: str = "true") -> str:
    """The reason. Nothing was changed."""
    words = ("rev-parse HEAD", "status -s", "tag")
    before = [git(clone, *one.split()) for one in words]
    reason = released(clone, version, suite=suite)
    assert reason and [git(clone, *one.split()) for one in words] == before
    return reason


def commit(clone: Path, path: str, old: str, new: str) -> None:
    file = clone / path
    file.write_text(file.read_text().replace(old, new))
    git(clone, "commit", "--quiet", "-am", f"{path}: changed")


def test_a_release_is_one_commit_and_one_tag(clone: Path) -> None:
    """The version is everywhere, the changelog keeps an empty heading, and the last release alone
    is listed with its migrations and has its data there."""
    assert released(clone, suite="test -f CHANGELOG.md") == ""
    assert git(clone, "log", "--format=%s", "origin/HEAD..HEAD") == f"release: {NEXT}"
    assert git(clone, "rev-parse", f"v{NEXT}^{{commit}}") == git(clone, "rev-parse", "HEAD")
    assert git(clone, "cat-file", "-t", f"v{NEXT}") == "tag"
    assert f'VERSION = "{NEXT}"' in (clone / "inference" / "version.py").read_text()
    assert f'__version__ = "{NEXT}"' in (clone / ACP).read_text()
    unreleased, release, *_ = (clone / "CHANGELOG.md").read_text().split("\n## ")[1:]
    assert unreleased.strip() == "Unreleased"
    assert release.startswith(f"{NEXT} - 20") and "- A thing." in release
    releases = json.loads((clone / "packaging" / "releases.json").read_text())
    assert releases.keys() == {f"v{NEXT}"}
    assert releases[f"v{NEXT}"].keys() >= {"batches", "fleet", "helexa_site", "metering"}
    assert all(name[:4].isdigit() for name in releases[f"v{NEXT}"].values())
    assert "has nothing unreleased" in refused(clone, "97.0.1")
    commit(clone, "CHANGELOG.md", "## Unreleased\n", ENTRY)
    assert released(clone, "97.0.1") == ""
    (archive,) = (clone / "packaging" / "releases").iterdir()
    assert (archive.name, archive.read_text()) == ("v97.0.1.sqlite.tar.gz", "97.0.1")
    assert git(clone, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("path", "old", "new", "suite", "reason"),
    [
        ("tests/upgrade/fill.py", FILL, "raise SystemExit(1)", "true", "could not be made"),
        (ACP, f'"{VERSION}"', '"0"', "touch ran", f"{ACP} does not have"),
        ("CHANGELOG.md", "### Added\n\n- A thing", "- A thing", "true", "not under Added"),
        ("CHANGELOG.md", "- A thing", "- Another", "false", "the suite failed"),
    ],
)
def test_what_is_not_ready_is_refused(
    clone: Path, path: str, old: str, new: str, suite: str, reason: str
) -> None:
    """A suite that would leave a file is not run."""
    commit(clone, path, old, new)
    assert reason in refused(clone, suite=suite)


def test_changes_and_a_version_that_is_none_or_not_newer_or_has_a_tag_are_refused(
    clone: Path,
) -> None:
    for version in (VERSION, "0.0.9", "1.0", "v1.0.0", "next"):
        assert "no release: " in refused(clone, version)
    assert "not committed" in released(clone, suite="touch left")
    assert "not committed" in refused(clone)
    (clone / "left").unlink()
    git(clone, "tag", f"v{NEXT}")
    assert f"there is a tag v{NEXT} already" in refused(clone)

"""What a copy was built from: a package's file, a checkout's git, or unknown."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from django.test import Client

from inference.build import Build, build_of_checkout, this_build, version_object
from inference.version import VERSION
from tests.cases import each_case
from tests.fleet.api.api_support import key_api

BUILT = Build(
    git_sha="0123456789ab",
    git_sha_long="0123456789abcdef",
    git_dirty=False,
    build_timestamp="2026-01-01T00:00:00+00:00",
)


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ("git", "-C", str(folder), *identity, *words), check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@each_case(("content", "expected"), [(json.dumps(asdict(BUILT)), BUILT), ("[]", Build())])
def test_a_package_knows_its_commit(tmp_path: Path, content: str, expected: Build) -> None:
    (tmp_path / "build.json").write_text(content)
    assert this_build(tmp_path / "build.json", tmp_path) == expected


def test_a_checkout_asks_git(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    clean = build_of_checkout(tmp_path)
    assert clean.git_sha_long == git(tmp_path, "rev-parse", "HEAD")
    assert clean.git_sha_long.startswith(clean.git_sha)
    assert (clean.git_dirty, clean.build_timestamp[:2]) == (False, "20")
    (tmp_path / "file").write_text("two")
    assert build_of_checkout(tmp_path).git_dirty


@pytest.mark.django_db
def test_the_gateway_shows_it_to_those_who_may_read_the_fleet() -> None:
    assert Client().get("/version").status_code in (401, 403)
    key = key_api("fleet:read").key
    answer = Client().get("/version", HTTP_AUTHORIZATION=f"Bearer {key}").json()
    assert (answer["package_version"], answer["features"]) == (VERSION, [])
    assert version_object(BUILT)["git_sha"] == BUILT.git_sha

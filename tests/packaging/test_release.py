"""What a release is made with: notes for rpm, the audit, the bill of materials, lock files."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helexa_site.bootstrap.environment import (
    CPU_LOCK,
    CUDA_LOCK,
    LOCKS_OF,
    applying,
    installed_version,
    pins_line,
    pins_of,
)
from helexa_site.program import REPOSITORY_DIR

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
    rpms = importlib.import_module("rpms")

    def changelog(*, version: str = "0.2.0", is_tagged: bool) -> str:
        release = SimpleNamespace(
            version=version,
            is_tagged=is_tagged,
            unix_s=1795609863,
            package_version="0.2.0+git20261225.abc",
        )
        return str(rpms.rpm_changelog(NOTES, release))

    assert changelog(is_tagged=False) == f"{UNRELEASED}\n\n{RELEASED}"
    assert changelog(is_tagged=True) == RELEASED
    with pytest.raises(rpms.NotesError, match=r"'## 0\.3\.0 - YYYY-MM-DD'"):
        changelog(version="0.3.0", is_tagged=True)


def test_green_is_only_what_was_looked_up(tmp_path: Path) -> None:
    clean, unknown = "No known vulnerabilities found", "amqp  Dependency not found on PyPI"
    program = tmp_path / "pip-audit"
    for output, code, expected in (
        (clean, 0, 0),
        ("Found 2 known vulnerabilities in 1 package", 1, 1),
        (f"{clean}\n{unknown} and could not be audited", 0, 75),
        ("no such host", 1, 75),
    ):
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n")
        program.chmod(0o755)
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/")}
        done = subprocess.run((PACKAGING / "audit",), env=environment, capture_output=True)
        assert done.returncode == expected, output


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


OF_GATEWAY, OF_NEURON = LOCKS_OF["requirements.txt"]
LOCK = runpy.run_path(str(REPOSITORY_DIR / "packaging" / "lock"))
locked_in = LOCK["locked_in"]
TEXT = """\
# A comment.
networkx==3.6.1 ; python_full_version < '3.12' \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
    # via
    #   -r requirements.txt
    #   torch
psycopg[binary]==3.3.9 \\
    --hash=sha256:{a}
""".format(a="a" * 64, b="b" * 64)


def test_the_lock_files_are_of_these_pins_and_every_package_has_hashes_and_one_place() -> None:
    for name in LOCKS_OF:
        text = (REPOSITORY_DIR / LOCKS_OF[name][-1]).read_text()
        assert pins_line(REPOSITORY_DIR / name) in text, "packaging/lock writes the lock files"
    files = (OF_GATEWAY, OF_NEURON, CUDA_LOCK)
    locked = [list(locked_in(REPOSITORY_DIR / name)) for name in files]
    found = [(one.name, one.marker) for pins in locked for one in pins]
    assert len(found) == len(set(found)) > 100
    assert all(one.hashes for pins in locked for one in pins)
    gateway, neuron, cuda = ({one.name for one in pins} for pins in locked)
    assert "torch" in neuron and "nvidia-cublas" in cuda
    assert not any(name == "torch" or "nvidia" in name for name in gateway)
    # NVML's binding needs no CUDA.
    assert {name for name in neuron if "nvidia" in name or "cuda" in name} == {"nvidia-ml-py"}
    (torch,) = (one for one in locked[1] if one.name == "torch")
    # Of torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, from its project's own index.
    assert "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b" in torch.hashes
    (alone,) = locked_in(REPOSITORY_DIR / CPU_LOCK)
    assert (alone.version, alone.hashes) == (f"{torch.version}+cpu", torch.hashes)


def test_a_lock_file_is_read_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.write_text(TEXT)
    first, second = locked_in(path)
    assert (first.name, first.version, first.marker) == (
        "networkx",
        "3.6.1",
        "python_full_version < '3.12'",
    )
    assert first.hashes == ("a" * 64, "b" * 64)
    assert "torch" in first.needed_by
    assert (second.extras, second.version) == ("[binary]", "3.3.9")
    path.write_text(first.text() + second.text())
    assert [one.text() for one in locked_in(path)] == [first.text(), second.text()]
    path.write_text("networkx\n")
    with pytest.raises(ValueError, match=r"a\.lock:1"):
        list(locked_in(path))

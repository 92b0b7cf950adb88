"""What a release is made with: notes for rpm, the audit, the bill of materials, lock files; and
packages as they are built."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
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
from helexa_site.program import REPOSITORY_DIR as ROOT


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
        done = subprocess.run((ROOT / "packaging" / "audit",), env=environment, capture_output=True)
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


LOCK = runpy.run_path(str(ROOT / "packaging" / "lock"))
locked_in = LOCK["locked_in"]


def test_the_lock_files_are_of_these_pins_and_every_package_has_hashes_and_one_place(
    tmp_path: Path,
) -> None:
    for name in LOCKS_OF:
        text = (ROOT / LOCKS_OF[name][-1]).read_text()
        assert pins_line(ROOT / name) in text, "packaging/lock writes the lock files"
    files = (*LOCKS_OF["requirements.txt"], CUDA_LOCK)
    locked = [list(locked_in(ROOT / name)) for name in files]
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
    (alone,) = locked_in(ROOT / CPU_LOCK)
    assert (alone.version, alone.hashes) == (f"{torch.version}+cpu", torch.hashes)
    path = tmp_path / "a.lock"  # it is read and written again
    hashes = [f"    --hash=sha256:{letter * 64}" for letter in "ab"]
    lines = ["networkx==3.6.1 ; python_full_version < '3.12'", *hashes]
    path.write_text(
        " \\\n".join(lines) + "\n    # via torch\npsycopg[binary]==3.3.9 \\\n" + hashes[0]
    )
    first, second = locked_in(path)
    marker = "python_full_version < '3.12'"
    assert (first.name, first.version, first.marker) == ("networkx", "3.6.1", marker)
    assert (first.hashes, first.needed_by) == (("a" * 64, "b" * 64), {"torch"})
    assert (second.extras, second.version) == ("[binary]", "3.3.9")
    path.write_text(first.text() + second.text())
    assert [one.text() for one in locked_in(path)] == [first.text(), second.text()]
    path.write_text("networkx\n")
    with pytest.raises(ValueError, match=r"a\.lock:1"):
        list(locked_in(path))


NOTES = """\
# Changelog

## Unreleased

### Added

#### Queues

- Share 50 % of the queue
  (`max_queue_share_percent`).

## 0.2.0 - 2026-12-01

- Second.
"""
RELEASED = "* Tue Dec 01 2026 helexa - 0.2.0-1\n- Second."
UNRELEASED = """\
* Wed Nov 25 2026 helexa - 0.2.0+git20261225.abc-1
Added:

Queues:

- Share 50 %% of the queue
  (`max_queue_share_percent`)."""


def test_a_build_begins_with_what_is_not_released_and_a_release_with_its_own_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    rpms = importlib.import_module("rpms")
    release = SimpleNamespace(version="0.2.0", is_tagged=False, unix_s=1795609863)
    release.package_version = "0.2.0+git20261225.abc"
    assert rpms.rpm_changelog(NOTES, release) == f"{UNRELEASED}\n\n{RELEASED}"
    release.is_tagged = True
    assert rpms.rpm_changelog(NOTES, release) == RELEASED
    release.version = "0.3.0"
    with pytest.raises(rpms.NotesError, match=r"'## 0\.3\.0 - YYYY-MM-DD'"):
        rpms.rpm_changelog(NOTES, release)


CODE = ("fleet", "helexa_site", "inference", "metering", "templates")


def printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def built(out: Path) -> dict[str, bytes]:
    printed(sys.executable, str(ROOT / "packaging" / "build"), "--out", str(out))
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.mark.slow
@pytest.mark.limit_s(1200)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="packages are made of a git checkout")
def test_packages_are_equal_each_time_whole_and_without_torch(tmp_path: Path) -> None:
    out = tmp_path / "dist"
    first = built(out)
    assert first == built(tmp_path / "again")
    kinds = [name.rpartition(".")[2] for name in first]
    assert (kinds.count("whl"), kinds.count("deb")) == (2, 4)
    assert kinds.count("rpm") == (4 if shutil.which("rpmbuild") else 0)
    (wheel,) = out.glob("helexa-*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = printed("git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", "HEAD", "--", *CODE)
    assert set(tracked.split()) - packed == set()
    assert "inference/build.json" in packed
    (metadata,) = (name for name in packed if name.endswith("/METADATA"))
    output = zipfile.ZipFile(wheel).read(metadata).decode()
    requirements = [line for line in output.splitlines() if line.startswith("Requires-Dist: ")]
    assert [line for line in requirements if "torch==" in line] == [
        'Requires-Dist: torch==2.13.0; extra == "neuron"'
    ]
    assert any("Django==" in line for line in requirements)
    (deb,) = out.glob("cortex_*.deb")
    listed = printed("dpkg-deb", "--contents", str(deb))
    lines = {line.split()[-1]: line.split()[:2] for line in listed.splitlines()}
    assert lines["./etc/cortex/cortex.env"] == ["-rw-r-----", "root/root"]
    for name in ("cortex.service", "cortex-control.service"):
        assert lines[f"./usr/lib/systemd/system/{name}"][0] == "-rw-r--r--"
    (common,) = out.glob("helexa-common_*.deb")
    output = printed("dpkg-deb", "--contents", str(common))
    assert "./usr/lib/helexa/manage.py" in output and "/usr/share/man/man1/helexa.1" in output
    assert "./usr/share/bash-completion/completions/helexa" in output
    assert "site-packages" not in output and "libtorch" not in output
    (neuron,) = out.glob("helexa-neuron_*.deb")
    recommended = printed("dpkg-deb", "--field", str(neuron), "Recommends").strip()
    assert {"g++", "gcc", "python3-dev"} == set(recommended.split(", "))
    if shutil.which("rpmbuild") is None:
        return
    (rpm,) = out.glob("helexa-neuron-*.rpm")

    def asked(*words: str) -> list[str]:
        return printed("rpm", "--query", "--package", *words, str(rpm)).splitlines()

    (settings,) = (line for line in asked("--dump") if line.startswith("/etc/"))
    path, _, _, _, mode, owner, group, is_config, *_ = settings.split()
    assert (path, mode, owner, group) == ("/etc/neuron/neuron.env", "0100640", "root", "neuron")
    assert is_config == "1"
    assert "/usr/lib/systemd/system/neuron.service" in asked("--list")
    assert {"user(neuron)", "group(neuron)"} <= set(asked("--provides"))
    assert any(line.startswith("helexa-common = ") for line in asked("--requires"))
    assert {"gcc-c++", "gcc", "python3-devel"} == set(asked("--recommends"))
    assert any(line.endswith(" helexa - 0.1.0-1") for line in asked("--changelog"))
    scripts = "\n".join(asked("--scripts"))
    assert "useradd --system" in scripts and "systemctl try-restart neuron.service" in scripts

"""What an interpreter has of the pins, torch's build, and environments of other makers."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest

from helexa_site.bootstrap import environment
from helexa_site.bootstrap.commands import run
from helexa_site.bootstrap.console import BootstrapError
from helexa_site.bootstrap.environment import (
    CPU_LOCK,
    CPU_SIZE,
    CUDA_LOCK,
    CUDA_SIZE,
    pins_of,
    unmet,
)
from helexa_site.program import REPOSITORY_DIR
from inference.settings.installation import TORCH_CPU_INDEX_URL
from tests.cases import each_case


def test_reads_what_our_files_hold_and_which_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base.txt").write_text("one==1.0\n")
    file = tmp_path / "all.txt"
    file.write_text("# a comment\n-r base.txt\n\ntwo[a,b]==2.0+cpu  # why\nthree==3; a == 'b'\n")
    assert pins_of(file) == ["two[a,b]==2.0+cpu", "three==3; a == 'b'", "one==1.0"]
    before = environment.stamp_of(file)
    file.write_text(file.read_text().replace("# why", "# why not"))
    assert environment.stamp_of(file) == before
    (tmp_path / "base.txt").write_text("one==1.1\n")
    assert environment.stamp_of(file) != before
    for installed, pin, is_met in (
        ("2.13.0+cpu", "sample==2.13.0", True),
        ("2.13.0", "sample==2.13.0", True),
        ("2.13.0", "sample==2.13.0+cpu", False),
        ("2.13.1", "sample==2.13.0", False),
        (None, "sample==2.13.0", False),
        (None, "sample==2.13.0; sys_platform == 'no-such-platform'", True),
        (None, "sample==2.13.0; extra == 'other'", True),
    ):
        monkeypatch.setattr(environment, "installed_version", lambda _, found=installed: found)
        assert (unmet([pin]) == []) is is_met


REQUIREMENTS = REPOSITORY_DIR / "requirements.txt"
(TORCH,) = (pin for pin in pins_of(REQUIREMENTS) if pin.startswith("torch=="))
VERSION = TORCH.removeprefix("torch==")
ALONE = f"--no-deps --extra-index-url {TORCH_CPU_INDEX_URL} --require-hashes {CPU_LOCK}"
LOCKED = "--require-hashes requirements-gateway.lock"
WITH_NEURON = f"{LOCKED} requirements-neuron.lock"
WITH_CUDA = f"{WITH_NEURON} {CUDA_LOCK}"
UNCHECKED = f"--no-deps --index-url {TORCH_CPU_INDEX_URL} {TORCH}"


@dataclass
class Pip:
    """Stands where pip is, which finds torch for CPUs or does not."""

    installed: str | None = None
    fails: dict[str, str] = field(default_factory=dict)
    """What a run with such a word prints."""
    printed: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    """The words of each run, its files by their names alone."""

    def __call__(self, *arguments: str) -> tuple[bool, str]:
        words = [Path(word).name if word.startswith("/") else word for word in arguments]
        self.ran.append(" ".join(word for word in words if word != "--requirement"))
        found = [output for word, output in self.fails.items() if word in words]
        return not found, "".join(found)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pip:
    made = Pip()
    monkeypatch.setattr(environment, "_pip", made)
    monkeypatch.setattr(environment, "print_step", lambda step, text: made.printed.append(text))
    monkeypatch.setattr(environment, "installed_version", lambda name: made.installed)
    monkeypatch.setattr(environment, "DRIVER_SIGNS", (str(tmp_path / "driver"),))
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="torch has one build elsewhere")
def test_which_torch_is_installed(
    pip: Pip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Torch for CPUs comes first and alone, where there is no driver. The package index may have
    that build too, and a gateway gets no torch."""
    no_index = f"--no-deps --require-hashes {CPU_LOCK}"
    for state, variable, ran, size in (
        ({}, "", [ALONE, WITH_NEURON], CPU_SIZE),
        ({"fails": {"--no-deps": ""}}, "", [ALONE, WITH_CUDA], CUDA_SIZE),
        ({}, "HELEXA_TORCH_CPU_INDEX=off", [no_index, WITH_NEURON], CPU_SIZE),
        ({}, "HELEXA_REQUIRE_HASHES=0", [UNCHECKED, "requirements.txt"], CPU_SIZE),
        ({"installed": f"{VERSION}+cpu"}, "", [WITH_NEURON], ""),
        ({"installed": VERSION}, "", [WITH_CUDA], ""),
        ({}, "a driver", [WITH_CUDA], CUDA_SIZE),
    ):
        pip.__init__(**state)  # type: ignore[misc]
        name, _, value = variable.partition("=")
        if variable == "a driver":
            (tmp_path / "driver").touch()
        with monkeypatch.context() as patch:
            patch.setenv(name or "HELEXA_NOTHING", value)
            environment.install(REQUIREMENTS)
        assert pip.ran == ran
        assert any(size in line for line in pip.printed)
    pip.ran.clear()
    environment.install(REPOSITORY_DIR / "requirements-gateway.txt")
    assert pip.ran == [LOCKED]
    (tmp_path / "requirements-gateway.txt").write_text("own==1.0\n")
    (tmp_path / "requirements-gateway.lock").write_text("other==1.0\n")
    environment.install(tmp_path / "requirements-gateway.txt")
    assert pip.ran[1:] == ["requirements-gateway.txt"]
    assert any("are of other pins than requirements-gateway.txt" in line for line in pip.printed)


def test_an_install_that_fails(pip: Pip, tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("own==1.0\n")
    for file, word, printed, reason in (
        (own, "own.txt", "DO NOT MATCH THE HASHES FROM\n", "HELEXA_REQUIRE_HASHES=0"),
        (REQUIREMENTS, "--no-deps", "DO NOT MATCH THE HASHES", f"{TORCH}: the package index"),
        (own, "own.txt", "Max retries exceeded with url\nERROR: x\n", "can be reached"),
        (own, "own.txt", "ERROR: no such pin\n\n", "cannot install own.txt: ERROR: no such"),
        (own, "own.txt", "", "no reason given"),
    ):
        pip.fails = {word: printed}
        with pytest.raises(BootstrapError, match=reason):
            environment.install(file)


EXTRA = [f'helexa-tensors{number}==1.0; extra == "neuron"' for number in range(5)]


def test_a_wheel_that_lacks_packages_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "REPOSITORY_DIR", tmp_path)
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9/0")
    pages = "helexa-pages==1.0"
    for words, pins, printed in (
        ("neuron", EXTRA, "this helexa was installed without its extra 'neuron'"),
        ("serve", EXTRA, 'tensors3==1.0; extra == "neuron" and 1 more): install its wheel'),
        ("serve", EXTRA[:1], "start serve with --no-neuron"),
        ("serve --no-neuron", [*EXTRA, pages], f"{pages} is not installed"),
    ):
        monkeypatch.setattr(metadata, "requires", {"helexa": pins}.__getitem__)
        assert run(words.split()) == 1
        line = capsys.readouterr().err
        assert printed in line and line.count("\n") == 1
        assert not (tmp_path / "data").exists()
    monkeypatch.setattr(metadata, "requires", {"helexa": ["django==5", *EXTRA]}.__getitem__)
    environment.ensure_environment("requirements-gateway.txt")  # which needs no extra

    def unknown(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)
    environment.ensure_environment("requirements.txt")  # code without pip's records


@each_case(
    ("is_inside", "problem"),
    [
        (False, "its Python does not run as this user"),
        (True, "the environment lacks what requirements.txt asks for"),
    ],
)
def test_an_environment_of_another_user_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_inside: bool, problem: str
) -> None:
    (tmp_path / "requirements.txt").write_text("helexa-sample==1.0\n")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("bin/python", "pyvenv.cfg"):
        (venv / name).touch()
    before = sorted(venv.rglob("*"))
    monkeypatch.setattr(environment, "REPOSITORY_DIR", tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != venv)
    monkeypatch.setattr(sys, "prefix", str(venv) if is_inside else "/usr")
    monkeypatch.setenv("HELEXA_VENV", str(venv))
    monkeypatch.setenv("HELEXA_ENVIRONMENT_ATTEMPT", "0")
    with pytest.raises(BootstrapError) as refused:
        environment.ensure_environment("requirements.txt")
    assert str(refused.value) == (
        f"{problem}, and {venv} cannot be written: start as the user who made it "
        f"({venv.owner()}), or name another directory in HELEXA_VENV"
    )
    assert sorted(venv.rglob("*")) == before
    monkeypatch.setenv("HELEXA_ENVIRONMENT_ATTEMPT", "3")
    with pytest.raises(BootstrapError, match="remove that directory"):
        environment.ensure_environment("requirements.txt")

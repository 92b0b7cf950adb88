"""What an interpreter has of the pins, torch's build, and environments of other makers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from helexa_site.bootstrap import environment
from helexa_site.bootstrap.commands import run
from helexa_site.bootstrap.environment import (
    CPU_LOCK,
    CPU_SIZE,
    CUDA_LOCK,
    CUDA_SIZE,
    pins_of,
    unmet,
)
from helexa_site.bootstrap.errors import BootstrapError
from helexa_site.program import REPOSITORY_DIR
from inference.settings.installation import TORCH_CPU_INDEX, TORCH_CPU_INDEX_URL
from tests.cases import each_case

REQUIREMENTS = REPOSITORY_DIR / "requirements.txt"
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="torch has one build elsewhere")


def test_reads_what_our_files_hold(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("one==1.0\n")
    file = tmp_path / "all.txt"
    file.write_text("# a comment\n-r base.txt\n\ntwo[a,b]==2.0+cpu  # why\nthree==3; a == 'b'\n")
    assert pins_of(file) == ["two[a,b]==2.0+cpu", "three==3; a == 'b'", "one==1.0"]
    before = environment.stamp_of(file)
    file.write_text(file.read_text().replace("# why", "# why not"))
    assert environment.stamp_of(file) == before
    (tmp_path / "base.txt").write_text("one==1.1\n")
    assert environment.stamp_of(file) != before


@each_case(
    ("installed", "pin", "is_met"),
    [
        ("2.13.0+cpu", "sample==2.13.0", True),
        ("2.13.0", "sample==2.13.0", True),
        ("2.13.0", "sample==2.13.0+cpu", False),
        ("2.13.1", "sample==2.13.0", False),
        (None, "sample==2.13.0", False),
        (None, "sample==2.13.0; sys_platform == 'no-such-platform'", True),
        (None, "sample==2.13.0; extra == 'other'", True),
    ],
)
def test_versions(
    monkeypatch: pytest.MonkeyPatch, installed: str | None, pin: str, is_met: bool
) -> None:
    monkeypatch.setattr(environment, "installed_version", lambda name: installed)
    assert (unmet([pin]) == []) is is_met


class Host:
    """A host on which pip finds torch for CPUs or does not, with a torch or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, driver_sign: Path) -> None:
        self.printed: list[str] = []
        self.ran: list[str] = []
        """The words of each run of pip, its files by their names alone."""
        self.finds_it = True
        self.installed: str | None = None
        monkeypatch.setattr(environment, "_ensure_pip", lambda: None)
        monkeypatch.setattr(environment, "_pip", self.pip)
        monkeypatch.setattr(environment, "print_step", lambda step, text: self.printed.append(text))
        monkeypatch.setattr(environment, "installed_version", lambda name: self.installed)
        monkeypatch.setattr(environment, "DRIVER_SIGNS", (str(driver_sign),))

    def pip(self, *arguments: str) -> tuple[bool, str]:
        words = [Path(word).name if word.startswith("/") else word for word in arguments]
        self.ran.append(" ".join(word for word in words if word != "--requirement"))
        return "--no-deps" not in arguments or self.finds_it, ""


(TORCH,) = (pin for pin in pins_of(REQUIREMENTS) if pin.startswith("torch=="))
VERSION = TORCH.removeprefix("torch==")
OF_CPU = f"--no-deps --extra-index-url {TORCH_CPU_INDEX_URL} --require-hashes {CPU_LOCK}"
LOCKED = "--require-hashes requirements-gateway.lock"
WITH_NEURON = f"{LOCKED} requirements-neuron.lock"
WITH_CUDA = f"{WITH_NEURON} {CUDA_LOCK}"
OFF = {"HELEXA_TORCH_CPU_INDEX": "off"}
UNCHECKED = {"HELEXA_REQUIRE_HASHES": "0"}


@ON_LINUX
@each_case(
    ("state", "variables", "ran", "size"),
    [
        ({}, {}, [OF_CPU, WITH_NEURON], CPU_SIZE),
        ({"has_driver": True}, {}, [WITH_CUDA], CUDA_SIZE),
        ({"finds_it": False}, {}, [OF_CPU, WITH_CUDA], CUDA_SIZE),
        ({}, OFF, [f"--no-deps --require-hashes {CPU_LOCK}", WITH_NEURON], CPU_SIZE),
        (
            {},
            UNCHECKED,
            [f"--no-deps --index-url {TORCH_CPU_INDEX_URL} {TORCH}", "requirements.txt"],
            CPU_SIZE,
        ),
        ({"installed": f"{VERSION}+cpu"}, {}, [WITH_NEURON], ""),
        ({"installed": VERSION}, {}, [WITH_CUDA], ""),
        ({"name": "requirements-gateway.txt"}, {}, [LOCKED], ""),
    ],
)
def test_which_torch_is_installed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    state: dict[str, Any],
    variables: dict[str, str],
    ran: list[str],
    size: str,
) -> None:
    """Torch for CPUs comes first and alone, where there is no driver. The package index may have
    that build too, and a gateway gets no torch."""
    host = Host(monkeypatch, tmp_path / "driver")
    host.finds_it, host.installed = state.get("finds_it", True), state.get("installed")
    if "has_driver" in state:
        (tmp_path / "driver").touch()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment.install(REPOSITORY_DIR / state.get("name", "requirements.txt"))
    assert host.ran == ran
    assert any(size in line for line in host.printed)


@each_case(
    ("printed", "reason"),
    [
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM\n", "HELEXA_REQUIRE_HASHES=0"),
        ("Max retries exceeded with url\nERROR: x\n", "no package index can be reached"),
        ("ERROR: no such pin\n\n", "cannot install own.txt: ERROR: no such pin"),
        ("", "no reason given"),
    ],
)
def test_an_install_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: str, reason: str
) -> None:
    Host(monkeypatch, tmp_path)
    monkeypatch.setattr(environment, "_pip", lambda *_: (False, printed))
    (tmp_path / "own.txt").write_text("own==1.0\n")
    with pytest.raises(BootstrapError, match=reason):
        environment.install(tmp_path / "own.txt")


def test_pins_that_are_not_locked_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = Host(monkeypatch, tmp_path)
    (tmp_path / "requirements-gateway.txt").write_text("own==1.0\n")
    (tmp_path / "requirements-gateway.lock").write_text("other==1.0\n")
    environment.install(tmp_path / "requirements-gateway.txt")
    assert host.ran == ["requirements-gateway.txt"]
    assert any("are of other pins than requirements-gateway.txt" in line for line in host.printed)


OF_GATEWAY = "django==5.2.19"
OF_NEURON = 'helexa-tensors==1.0; extra == "neuron"'


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def needs(*pins: str) -> None:
        monkeypatch.setattr(environment, "REPOSITORY_DIR", tmp_path)
        monkeypatch.setattr(metadata, "requires", {"helexa": list(pins)}.__getitem__)

    return needs


def test_a_wheel_without_its_extra_is_refused_before_anything_starts(
    wheel: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wheel(OF_GATEWAY, OF_NEURON)
    environment.ensure_environment("requirements-gateway.txt")  # which needs no extra
    data_dir = tmp_path / "data"
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:9/0")
    for words in (["neuron"], ["serve", "--data-dir", str(data_dir)]):
        assert run(words) == 1
        printed = capsys.readouterr().err
        assert printed.startswith("helexa: this helexa was installed without its extra 'neuron'")
    assert "helexa-tensors==1.0" in printed and "--no-neuron" in printed
    assert printed.count("\n") == 1
    assert not data_dir.exists()


def test_a_broken_wheel_is_reported_and_code_without_pips_records_is_run_as_it_is(
    wheel: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel("helexa-pages==1.0")
    assert run(["serve", "--no-neuron"]) == 1
    assert "helexa-pages==1.0 is not installed" in capsys.readouterr().err

    def unknown(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)
    environment.ensure_environment("requirements.txt")


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its Python is there, and may not be run."""
    (tmp_path / "requirements.txt").write_text("helexa-sample==1.0\n")
    made = tmp_path / "venv"
    (made / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (made / "bin").mkdir()
    (made / "bin" / "python").write_text("")
    (made / "pyvenv.cfg").write_text("")
    (made / "pip.log").write_text("")
    monkeypatch.setattr(environment, "REPOSITORY_DIR", tmp_path)
    monkeypatch.setattr(environment, "_reexec", lambda _venv: pytest.fail("it was entered"))
    monkeypatch.setenv("HELEXA_VENV", str(made))
    return made


@each_case("is_inside", [False, True])
def test_an_environment_of_another_user_is_left_as_it_is(
    venv: Path, monkeypatch: pytest.MonkeyPatch, is_inside: bool
) -> None:
    before = sorted(venv.rglob("*"))
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != venv)
    monkeypatch.setenv("HELEXA_ENVIRONMENT_ATTEMPT", "0")
    monkeypatch.setattr(sys, "prefix", str(venv) if is_inside else "/usr")
    problem = "lacks what requirements.txt asks for" if is_inside else "does not run as this user"
    with pytest.raises(BootstrapError, match=problem) as refused:
        environment.ensure_environment("requirements.txt")
    line = str(refused.value)
    assert f"{venv} cannot be written" in line
    assert venv.owner() in line
    assert "HELEXA_VENV" in line
    assert sorted(venv.rglob("*")) == before


LINES = """\
Looking in links: wheels
Collecting django==5.2.19
  Downloading django-5.2.19-py3-none-any.whl.metadata (4.1 kB)
Collecting torch==2.13.0
  Downloading https://download.example.org/whl/torch-2.13.0.whl (190.1 MB)
Installing collected packages: torch, django
Successfully installed django-5.2.19 torch-2.13.0
"""


def test_what_pip_prints_is_in_the_log_and_long_steps_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program runs in pip's place."""
    code = f"print({LINES!r}, end=''); exit(3)"
    real = subprocess.Popen
    monkeypatch.setattr(
        environment.subprocess,
        "Popen",
        lambda _command, **options: real([sys.executable, "-u", "-c", code], **options),
    )
    monkeypatch.setenv("HELEXA_VENV", str(tmp_path))
    assert environment._pip("anything") == (False, LINES)
    assert (tmp_path / "pip.log").read_text() == LINES
    assert capsys.readouterr().out.splitlines() == [
        f"environment pip's output: {tmp_path / 'pip.log'}",
        "environment Downloading https://download.example.org/whl/torch-2.13.0.whl (190.1 MB)",
        "environment Installing collected packages: torch, django",
    ]


def test_the_setting() -> None:
    assert TORCH_CPU_INDEX.read({}) == TORCH_CPU_INDEX_URL
    for word in ("off", " "):
        assert TORCH_CPU_INDEX.read({"HELEXA_TORCH_CPU_INDEX": word}) is None
    named = {"HELEXA_TORCH_CPU_INDEX": "https://wheels.example.org/cpu/"}
    assert TORCH_CPU_INDEX.read(named) == "https://wheels.example.org/cpu"

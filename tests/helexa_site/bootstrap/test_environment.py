"""What an interpreter has of the pins, torch's build, environments of other makers; and the virtual
environment as it is made, mended, filled and entered, with real pip and no network."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import pytest

import packaging
from helexa_site.bootstrap import environment
from helexa_site.bootstrap.commands import run
from helexa_site.bootstrap.console import BootstrapError
from helexa_site.program import REPOSITORY_DIR
from inference.settings.installation import TORCH_CPU_INDEX_URL
from tests.cases import each_case


def test_reads_what_our_files_hold_and_which_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base.txt").write_text("one==1.0\n")
    file = tmp_path / "all.txt"
    file.write_text("# a comment\n-r base.txt\n\ntwo[a,b]==2.0+cpu  # why\nthree==3; a == 'b'\n")
    assert environment.pins_of(file) == ["two[a,b]==2.0+cpu", "three==3; a == 'b'", "one==1.0"]
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
        assert (environment.unmet([pin]) == []) is is_met


REQUIREMENTS = REPOSITORY_DIR / "requirements.txt"
(TORCH,) = (pin for pin in environment.pins_of(REQUIREMENTS) if pin.startswith("torch=="))
VERSION = TORCH.removeprefix("torch==")
ALONE = f"--no-deps --extra-index-url {TORCH_CPU_INDEX_URL} --require-hashes {environment.CPU_LOCK}"
LOCKED = "--require-hashes requirements-gateway.lock"
WITH_NEURON = f"{LOCKED} requirements-neuron.lock"
WITH_CUDA = f"{WITH_NEURON} {environment.CUDA_LOCK}"
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
    no_index = f"--no-deps --require-hashes {environment.CPU_LOCK}"
    for state, variable, ran, size in (
        ({}, "", [ALONE, WITH_NEURON], environment.CPU_SIZE),
        ({"fails": {"--no-deps": ""}}, "", [ALONE, WITH_CUDA], environment.CUDA_SIZE),
        ({}, "HELEXA_TORCH_CPU_INDEX=off", [no_index, WITH_NEURON], environment.CPU_SIZE),
        ({}, "HELEXA_REQUIRE_HASHES=0", [UNCHECKED, "requirements.txt"], environment.CPU_SIZE),
        ({"installed": f"{VERSION}+cpu"}, "", [WITH_NEURON], ""),
        ({"installed": VERSION}, "", [WITH_CUDA], ""),
        ({}, "a driver", [WITH_CUDA], environment.CUDA_SIZE),
    ):
        pip.ran, pip.printed = [], []
        pip.installed, pip.fails = state.get("installed"), state.get("fails", {})
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


def test_an_environment_of_another_user_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements.txt").write_text("helexa-sample==1.0\n")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    for name in ("bin/python", "pyvenv.cfg"):
        (venv / name).touch()
    before = sorted(venv.rglob("*"))
    monkeypatch.setattr(environment, "REPOSITORY_DIR", tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != venv)
    monkeypatch.setenv("HELEXA_VENV", str(venv))
    for prefix, problem in (
        ("/usr", "its Python does not run as this user"),
        (str(venv), "the environment lacks what requirements.txt asks for"),
    ):
        monkeypatch.setattr(sys, "prefix", prefix)
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


LOCKS = ("gateway", "neuron", "cuda")
STARTER = """
import sys
from pathlib import Path
from helexa_site.bootstrap import environment
from helexa_site.bootstrap.console import BootstrapError
environment.REPOSITORY_DIR = Path(sys.argv[1])
try:
    environment.ensure_environment("requirements.txt")
except BootstrapError as error:
    sys.exit(f"helexa: {error}")
import helexa_sample
print("inside", sys.prefix)
"""


class Checkout:
    """A directory with a requirements file, a starter, and wheels that pip finds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.venv = path / ".venv"
        (path / "wheels").mkdir()
        write_wheel(path / "wheels", "1.0")
        self.require("helexa-sample==1.0\n")
        (path / "start.py").write_text(STARTER)

    def require(self, text: str) -> None:
        (self.path / "requirements.txt").write_text(text)

    def popen(self, **env: str) -> subprocess.Popen[str]:
        ours = {"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY_DIR)}
        ours |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "HELEXA_VENV": str(self.venv)}
        ours |= {"PIP_FIND_LINKS": str(self.path / "wheels")}
        command = [sys.executable, str(self.path / "start.py"), str(self.path)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, env=ours | env, **pipes)

    def start(self, **env: str) -> tuple[int, str, str]:
        process = self.popen(**env)
        output, errors = process.communicate(timeout=300)
        return process.returncode, output, errors

    def ensure_nothing_to_do(self) -> None:
        assert self.start(PIP_FIND_LINKS="") == (0, f"inside {self.venv}\n", "")


def write_wheel(directory: Path, version: str) -> None:
    info = f"helexa_sample-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: helexa-sample\nVersion: {version}\n"
    files = {
        "helexa_sample.py": "",
        f"{info}/METADATA": head,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(directory / f"helexa_sample-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Its environment has been made by two starts at once, of which one has installed."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    for process in [checkout.popen(), checkout.popen()]:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, output + errors
        assert f"inside {checkout.venv}" in output
        assert "Looking in links" not in output, "pip's own lines are in the log"
    log = (checkout.venv / "pip.log").read_text()
    assert log.count("Successfully installed helexa-sample-1.0") == 1
    return checkout


@pytest.mark.slow
def test_a_start_installs_what_was_interrupted_or_has_changed_alone(made: Checkout) -> None:
    """Also after a comment has changed, and where somebody else has filled the environment, which
    has no stamp."""
    made.ensure_nothing_to_do()
    made.require("# A comment.\nhelexa-sample==1.0\n")
    made.ensure_nothing_to_do()
    stamp = made.venv / environment.STAMP
    (site_packages,) = made.venv.glob("lib/python*/site-packages")
    (site_packages / "packaging.pth").write_text(f"{Path(packaging.__file__).parents[1]}\n")
    stamp.unlink()
    made.ensure_nothing_to_do()
    assert not stamp.exists()
    (site_packages / "packaging.pth").unlink()
    # Pip had begun, and the environment's Python is there already.
    for version, is_newer in (("1.0", False), ("2.0", True)):
        (made.venv / environment.STAMP).write_text("")
        write_wheel(made.path / "wheels", version)
        made.require(f"helexa-sample=={version}\n")
        code, output, errors = made.start()
        assert code == 0, output + errors
        assert "environment installing requirements.txt\n" in output
        assert is_newer == ("environment Installing collected packages: helexa-sample\n" in output)
        assert f"helexa-sample-{version}" in (made.venv / "pip.log").read_text()
        made.ensure_nothing_to_do()


@pytest.mark.slow
@each_case("is_half_made", [False, True])
def test_a_broken_environment_is_mended(made: Checkout, is_half_made: bool) -> None:
    """An uninstalled Python leaves it so: its link leads nowhere. A kill between making the
    directory and filling it leaves a half."""
    python = made.venv / "bin" / "python"
    python.unlink()
    if is_half_made:
        shutil.rmtree(made.venv)
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\nexit 1\n")
    else:
        python.symlink_to("/nonexistent/python")
    code, output, errors = made.start()
    assert code == 0, output + errors
    assert f"making {made.venv}" in output


@pytest.mark.slow
def test_a_package_that_nobody_has_is_one_line_and_files_are_held_to_their_locks(
    made: Checkout, tmp_path: Path
) -> None:
    made.require("helexa-elsewhere==1.0\n")
    code, output, errors = made.start()
    assert code == 1
    assert errors.count("\n") == 1 and "helexa-elsewhere==1.0" in errors
    assert "  ERROR: No matching distribution found for helexa-elsewhere==1.0\n" in output
    checkout = Checkout(tmp_path)
    (wheel,) = (tmp_path / "wheels").iterdir()
    gateway, neuron, cuda = (tmp_path / f"requirements-{name}.lock" for name in LOCKS)
    neuron.write_text(environment.pins_line(tmp_path / "requirements.txt"))
    cuda.write_text("")
    for sha256, expected, words in (
        ("0" * 64, 1, "another file than the one that was locked"),
        (hashlib.sha256(wheel.read_bytes()).hexdigest(), 0, "inside"),
    ):
        gateway.write_text(f"helexa-sample==1.0 \\\n    --hash=sha256:{sha256}\n")
        code, output, errors = checkout.start()
        assert (code, words in output + errors) == (expected, True), errors
        assert "hashes are not checked" not in output

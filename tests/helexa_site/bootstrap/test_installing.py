"""The virtual environment is made, mended, filled and entered; with real pip and no network."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import packaging
from helexa_site.bootstrap import environment
from helexa_site.program import REPOSITORY_DIR
from tests.cases import each_case

pytestmark = pytest.mark.slow

STARTER = """
import sys
from pathlib import Path
from helexa_site.bootstrap import environment
from helexa_site.bootstrap.errors import BootstrapError
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
        (path / "requirements.txt").write_text("helexa-sample==1.0\n")
        (path / "start.py").write_text(STARTER)

    def popen(self, **env: str) -> subprocess.Popen[str]:
        unwanted = ("PIP_CONFIG_FILE", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "HELEXA_VENV")
        kept = {name: value for name, value in os.environ.items() if name not in unwanted}
        ours = {
            "PYTHONPATH": str(REPOSITORY_DIR),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.path / "wheels"),
            "HELEXA_VENV": str(self.venv),
        }
        return subprocess.Popen(
            [sys.executable, str(self.path / "start.py"), str(self.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=kept | ours | env,
        )

    def start(self, **env: str) -> tuple[int, str, str]:
        process = self.popen(**env)
        output, errors = process.communicate(timeout=300)
        return process.returncode, output, errors


def write_wheel(directory: Path, version: str) -> None:
    info = f"helexa_sample-{version}.dist-info"
    with zipfile.ZipFile(directory / f"helexa_sample-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("helexa_sample.py", "")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: helexa-sample\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


Made = tuple[Checkout, list[tuple[int, str, str]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkout whose environment two simultaneous starts have made, and the output of each."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    processes = [checkout.popen(), checkout.popen()]
    outcomes = []
    for process in processes:
        output, errors = process.communicate(timeout=300)
        outcomes.append((process.returncode, output, errors))
    return checkout, outcomes


def test_two_starts_at_once(made: Made) -> None:
    checkout, outcomes = made
    for code, output, errors in outcomes:
        assert code == 0, output + errors
        assert f"inside {checkout.venv}" in output
    log = (checkout.venv / "pip.log").read_text()
    assert log.count("Successfully installed helexa-sample-1.0") == 1
    for _, output, _ in outcomes:
        assert "Looking in links" not in output, "pip's own lines are in the log"
    assert any(f"pip's output: {checkout.venv / 'pip.log'}" in output for _, output, _ in outcomes)


def test_the_next_start_installs_nothing(
    made: Made,
) -> None:
    """Nor does an edited comment install anything."""
    checkout, _ = made
    for comment in ("", "# A comment.\n"):
        (checkout.path / "requirements.txt").write_text(f"{comment}helexa-sample==1.0\n")
        assert checkout.start(PIP_FIND_LINKS="") == (0, f"inside {checkout.venv}\n", "")


def test_an_interrupted_install_is_repeated(
    made: Made,
) -> None:
    """Pip had begun, and the environment's Python is there already."""
    checkout, _ = made
    (checkout.venv / environment.STAMP).write_text("")
    code, output, errors = checkout.start()
    assert code == 0, output + errors
    assert "installing requirements.txt" in output
    assert checkout.start() == (0, f"inside {checkout.venv}\n", "")


def test_an_environment_that_somebody_else_has_filled_is_left_alone(
    made: Made,
) -> None:
    """It has no stamp, and every pin."""
    checkout, _ = made
    stamp = checkout.venv / environment.STAMP
    (site_packages,) = checkout.venv.glob("lib/python*/site-packages")
    (site_packages / "packaging.pth").write_text(f"{Path(packaging.__file__).parents[1]}\n")
    kept = stamp.read_text()
    stamp.unlink()
    assert checkout.start(PIP_FIND_LINKS="") == (0, f"inside {checkout.venv}\n", "")
    assert not stamp.exists()
    stamp.write_text(kept)
    (site_packages / "packaging.pth").unlink()


def test_a_changed_pin_is_installed(made: Made) -> None:
    checkout, _ = made
    write_wheel(checkout.path / "wheels", "2.0")
    (checkout.path / "requirements.txt").write_text("helexa-sample==2.0\n")
    code, output, errors = checkout.start()
    assert code == 0, output + errors
    assert "installing requirements.txt" in output
    assert "helexa-sample-2.0" in (checkout.venv / "pip.log").read_text()


@each_case("is_half_made", [False, True])
def test_a_broken_environment_is_mended(made: Made, is_half_made: bool) -> None:
    """An uninstalled Python leaves it so: its link leads nowhere. A kill between making the
    directory and filling it leaves a half."""
    checkout, _ = made
    python = checkout.venv / "bin" / "python"
    if is_half_made:
        shutil.rmtree(checkout.venv)
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\nexit 1\n")
    else:
        python.unlink()
        python.symlink_to("/nonexistent/python")
    code, output, errors = checkout.start()
    assert code == 0, output + errors
    assert is_half_made or f"making {checkout.venv}" in output


@each_case(
    ("variables", "reason"),
    [
        (
            {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
            "no package index can be reached",
        ),
        ({}, "helexa-elsewhere==1.0"),
    ],
)
def test_a_package_that_nobody_has_is_one_line(
    made: Made, variables: dict[str, str], reason: str
) -> None:
    checkout, _ = made
    (checkout.path / "requirements.txt").write_text("helexa-elsewhere==1.0\n")
    code, output, errors = checkout.start(**variables)
    assert code == 1
    assert errors.count("\n") == 1 and reason in errors
    no_match = "  ERROR: No matching distribution found for helexa-elsewhere==1.0\n"
    assert variables or no_match in output


LOCKS = ("requirements-gateway.lock", "requirements-neuron.lock", "requirements-cuda.lock")


def lock(checkout: Checkout, sha256: str) -> Checkout:
    tmp_path = checkout.path
    for name in LOCKS:
        (tmp_path / name).write_text("")
    (tmp_path / LOCKS[0]).write_text(f"helexa-sample==1.0 \\\n    --hash=sha256:{sha256}\n")
    (tmp_path / LOCKS[1]).write_text(environment.pins_line(tmp_path / "requirements.txt"))
    return checkout


def test_another_file_than_the_locked_one_is_refused(tmp_path: Path) -> None:
    checkout = lock(Checkout(tmp_path), "0" * 64)
    code, _, errors = checkout.start()
    assert code == 1
    assert "the package index has another file than the one that was locked" in errors
    code, output, errors = checkout.start(HELEXA_REQUIRE_HASHES="0")
    assert code == 0, errors
    assert "inside" in output


def test_pins_that_are_not_locked_are_reported(tmp_path: Path) -> None:
    checkout = lock(Checkout(tmp_path), "0" * 64)
    write_wheel(tmp_path / "wheels", "1.1")
    (tmp_path / "requirements.txt").write_text("helexa-sample==1.1\n")
    code, output, errors = checkout.start()
    assert code == 0, errors
    assert "the lock files are of other pins than requirements.txt: hashes are not" in output


def test_the_locked_file_is_installed(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    (wheel,) = (tmp_path / "wheels").iterdir()
    lock(checkout, hashlib.sha256(wheel.read_bytes()).hexdigest())
    code, output, errors = checkout.start()
    assert code == 0, errors
    assert "hashes are not checked" not in output

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

"""The package of its own: its metadata, and the process that editors start."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import helexa_acp
from inference.version import VERSION
from tests.acp.bridge import PACKAGE_DIR, environment
from tests.cases import each_case

REPOSITORY_DIR = PACKAGE_DIR.parent
GREETING = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'


def test_its_metadata() -> None:
    metadata = tomllib.loads((PACKAGE_DIR / "pyproject.toml").read_text())
    files = ("requirements-dev.txt", "requirements-gateway.txt")
    pinned = [line for name in files for line in (REPOSITORY_DIR / name).read_text().splitlines()]
    assert set(metadata["project"]["dependencies"]) <= set(pinned), "it needs what is tested"
    folders = {path.parent for path in (PACKAGE_DIR / "helexa_acp").rglob("*.py")}
    names = {".".join(folder.relative_to(PACKAGE_DIR).parts) for folder in folders}
    assert set(metadata["tool"]["setuptools"]["packages"]) == names
    assert metadata["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "helexa_acp.__version__"
    }
    assert helexa_acp.__version__ == VERSION


def started(
    folder: Path, *arguments: str, given: str | None = None, **settings: str
) -> subprocess.CompletedProcess[str]:
    """The process with ``given`` on its standard input."""
    return subprocess.run(
        [sys.executable, "-m", "helexa_acp", *arguments],
        env=environment(folder, **settings),
        **({"stdin": subprocess.DEVNULL} if given is None else {"input": given}),
        capture_output=True,
        text=True,
        timeout=300,
    )


WRONG = "surprise = 1\n[[endpoints]]\nname = 'a'\nbase_url = 'http://a'\n"


@each_case(
    ("arguments", "settings", "exit_code", "expected"),
    [
        (["--help"], {}, 0, "usage: helexa-acp"),
        (["--version"], {}, 0, f"helexa-acp {helexa_acp.__version__}"),
        (["--modle", "x"], {}, 2, "it takes no '--modle'"),
        ([], {}, 1, "an editor starts this"),  # with nothing to read
        ([], {"HELEXA_LOG_LEVEL": "loud"}, 1, "helexa-acp: HELEXA_LOG_LEVEL='loud' is not one of"),
        ([], {"HELEXA_ACP_CONFIG_PATH": "~/wrong"}, 1, "wrong: Object contains unknown field"),
    ],
)
def test_it_prints_what_it_is_where_no_editor_starts_it(
    tmp_path: Path, arguments: list[str], settings: dict[str, str], exit_code: int, expected: str
) -> None:
    (tmp_path / "wrong").write_text(WRONG)
    done = started(tmp_path, *arguments, **settings)
    assert done.returncode == exit_code
    assert expected in (done.stdout if exit_code == 0 else done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_only_the_protocol_is_on_standard_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = started(tmp_path, given=f"nonsense\n{GREETING}", HELEXA_ACP_LOG_FILE=str(log))
    assert done.returncode == 0
    first, second = done.stdout.splitlines()
    assert '"code":-32700' in first
    assert '"name":"helexa-acp"' in second
    assert done.stderr == ""
    assert "a malformed message" in log.read_text()
    done = started(tmp_path, given="", HELEXA_ACP_LOG_FILE=str(tmp_path / "no" / "log"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "WARNING" in done.stderr and "cannot be written" in done.stderr
    done = started(tmp_path, given="nonsense\n", HELEXA_LOG_LEVEL="DEBUG,helexa_acp=error")
    assert "helexa_acp.lines" not in done.stderr, "the log obeys the level"


@pytest.mark.slow
def test_a_signal_ends_it(tmp_path: Path) -> None:
    """As the editor's end of its input does."""
    command = [sys.executable, "-m", "helexa_acp"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(tmp_path), text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(GREETING)
        process.stdin.flush()
        assert '"name":"helexa-acp"' in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.slow
@pytest.mark.limit_s(600)
def test_it_installs_and_starts(tmp_path: Path) -> None:
    """Needs a package registry."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    # A copy: the build leaves its work beside the sources.
    sources = shutil.copytree(PACKAGE_DIR, tmp_path / "acp")
    install = [str(venv / "bin" / "pip"), "install", "-q", str(sources)]
    subprocess.run(install, check=True, stdin=subprocess.DEVNULL)
    environ = environment(tmp_path)
    del environ["PYTHONPATH"]
    done = subprocess.run(
        [str(venv / "bin" / "helexa-acp")],
        env=environ,
        input=GREETING,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert '"name":"helexa-acp"' in done.stdout

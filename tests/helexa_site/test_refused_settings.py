"""serve, neurons, gateways, the control and the doctor refuse the same settings at their start."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helexa_site.bootstrap.commands import FAILURE, run
from inference.neuron.process import neuron_process as running
from inference.settings.setting import EXIT_MISCONFIGURED
from tests.cases import each_case
from tests.helexa_site.processes import python
from tests.slow_cases import slow_but

PROGRAMS = {
    "serve": (("manage.py", "serve"), EXIT_MISCONFIGURED),
    "gateway": (("manage.py", "gateway"), EXIT_MISCONFIGURED),
    "neuron": (("manage.py", "neuron", "--name", "box"), EXIT_MISCONFIGURED),
    "a neuron of serve": (("-m", "inference.neuron", "--name", "box"), EXIT_MISCONFIGURED),
    "control": (("-m", "helexa_site.control"), EXIT_MISCONFIGURED),
    "doctor": (("manage.py", "doctor"), FAILURE),
    "a command": (("manage.py", "status"), EXIT_MISCONFIGURED),
}
"""Each with its exit code."""
WRONG = {
    "HELEXA_LOG_FORMAT": "xml",
    "HELEXA_ALLOWED_HOSTS": "chat.example.org/path",
    "HELEXA_ENGINE_THREADS": "zero",
}
"""Settings of the log, of a gateway and of an engine."""


@pytest.fixture(autouse=True)
def kept_logging() -> Iterator[None]:
    """What starts in this process sets its logging up."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def line_of(capsys: pytest.CaptureFixture[str]) -> Callable[[str], str]:
    """The one line of standard error with that setting's name."""

    def line_of(name: str) -> str:
        (line,) = (line for line in capsys.readouterr().err.splitlines() if name in line)
        return line

    return line_of


@pytest.mark.parametrize("program", slow_but(PROGRAMS, "serve"))
def test_a_program_ends_with_one_line(program: str, tmp_path: Path) -> None:
    arguments, exit_code = PROGRAMS[program]
    for name, word in WRONG.items():
        done = python(*arguments, HELEXA_DATA_DIR=str(tmp_path), **{name: word})
        assert done.returncode == exit_code, done
        line, *rest = (done.stdout + done.stderr).splitlines()
        assert f"{name}={word!r} is not" in line
        assert len(rest) == (1 if program == "doctor" else 0), "the doctor prints a remedy"


SIMULATED = "tests.live.scripted.simulated_devices:simulated_devices"


@each_case(
    ("name", "value", "reason"),
    [
        ("HELEXA_DATA_DIR", "/proc/helexa/var", "the data directory /proc/helexa/var cannot be"),
        ("HELEXA_DATA_DIR", f"{__file__}/var", f"the data directory {__file__}/var cannot be made"),
        ("HELEXA_DEVICE_SOURCE", "no_such_module:devices", "No module named 'no_such_module'"),
        ("HELEXA_DEVICE_SOURCE", "json:devices", "has no attribute 'devices'"),
        ("HELEXA_DEVICE_SOURCE", "json:__name__", "not callable"),
        ("HELEXA_DEVICE_SOURCE", SIMULATED, "HELEXA_TEST_DEVICES names no file"),
        ("HELEXA_STAGE_LISTEN", "192.0.2.1", "nothing can listen on 192.0.2.1 here"),
        ("HELEXA_STAGE_LISTEN", "192.0.2.1:7400-7401", "nothing can listen on 192.0.2.1 here"),
    ],
)
def test_a_neuron_refuses_what_cannot_be_here(
    monkeypatch: pytest.MonkeyPatch,
    line_of: Callable[[str], str],
    tmp_path: Path,
    name: str,
    value: str,
    reason: str,
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path / "var"))
    monkeypatch.setenv(name, value)
    assert running.run("box") == EXIT_MISCONFIGURED
    assert reason in line_of(name)


def test_a_neurons_stages_need_one_port_that_is_free(
    monkeypatch: pytest.MonkeyPatch, line_of: Callable[[str], str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path / "var"))
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setenv("HELEXA_STAGE_LISTEN", f"127.0.0.1:{port}")
        assert running.run("box") == EXIT_MISCONFIGURED
        assert "nothing can listen on 127.0.0.1 here" in line_of("HELEXA_STAGE_LISTEN")
        monkeypatch.setenv("HELEXA_STAGE_LISTEN", f"127.0.0.1:{port}-{port + 9}")
        assert running._stage_host() == "127.0.0.1"


def test_a_misspelt_name_is_a_warning_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, line_of: Callable[[str], str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HELEXA_ALOW_ANONYMOUS", "0")
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert run(["neuron"]) == FAILURE, "it has no Redis"
    line = line_of("HELEXA_ALOW_ANONYMOUS")
    assert line.startswith("helexa: warning: ") and "did you mean HELEXA_ALLOW_ANONYMOUS?" in line

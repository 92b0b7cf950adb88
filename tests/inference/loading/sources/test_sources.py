"""Sources of models: paths, named hubs that are asked with their own tokens alone and cached apart,
and fetching as a process of its own."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference.loading.sources import cached, disk, fetch, hub_sources, pypi, sources
from inference.loading.sources.disk import check_sha256
from inference.loading.sources.fetch import Fetched, FetchFailed, FetchOrder
from inference.loading.sources.files import ModelFiles
from inference.loading.tokenizer_files import original_of
from inference.neuron.loads.files import Fetcher
from inference.protocol import load_errors as errors
from inference.protocol.load import LoadSpec
from inference.protocol.load_report import LoadProgress, LoadStage
from inference.wire.ollama import models as ollama_models
from tests.cases import each_case
from tests.inference.loading.fake_hub import FakeHub, serving
from tests.proxies import SOCKS, set_proxies

GGUF = "x-Q4_0.gguf"
SOURCES = "HELEXA_SOURCES"


def spec(source: str, **changes: Any) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source=source, **changes)


def fetched(source: str, tmp_path: Path, **changes: Any) -> ModelFiles:
    return sources.fetch_files(spec(source, **changes), tmp_path / "cache", 10**9, lambda _: None)


def names(source: str, tmp_path: Path, **changes: Any) -> list[str]:
    return [path.name for path in fetched(source, tmp_path, **changes).weights]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "shelf"
    (directory / "empty").mkdir(parents=True)
    for quant in ("Q4_0", "Q8_0"):
        (directory / f"x-{quant}.gguf").write_bytes(quant.encode() * 10)
    (directory / "notes.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    return directory


def test_a_file_a_directory_and_a_relative_path(shelf: Path, tmp_path: Path) -> None:
    """A file may have its suffix in capitals, or none."""
    assert names(f"path:{shelf / GGUF}", tmp_path) == [GGUF]
    assert names(f"path:{shelf}", tmp_path, file="Q8_0") == ["x-Q8_0.gguf"]
    assert names("path:shelf/x-Q8_0.gguf", tmp_path) == ["x-Q8_0.gguf"]
    (shelf / "Big-Q4_1.GGUF").write_bytes(b"GGUF")
    assert names(f"path:{shelf / 'Big-Q4_1.GGUF'}", tmp_path) == ["Big-Q4_1.GGUF"]
    assert names(f"path:{shelf}", tmp_path, file="Q4_1") == ["Big-Q4_1.GGUF"]
    blob = shelf / "sha256-74a4da8c"
    blob.write_bytes(b"GGUF and more")
    (shelf / "mmproj-x.gguf").write_bytes(b"GGUF")
    for file, projector in ((None, None), ("none", None), ("mmproj-x.gguf", "mmproj-x.gguf")):
        found = fetched(f"path:{blob}", tmp_path, file=file)
        assert found.is_gguf and found.weights == (blob,)
        assert found.projector == (None if projector is None else shelf / projector)
    with pytest.raises(errors.MissingFileError, match="mmproj-y"):
        fetched(f"path:{blob}", tmp_path, file="mmproj-y.gguf")


SCHEMES = "huggingface:, path:, pypi:"


def test_refusals(shelf: Path, tmp_path: Path) -> None:
    for source, changes, error, words in (
        *(
            (source, {}, errors.BadSourceError, SCHEMES)
            for source in ("", "x", "path:", "path: ", "ftp:x", "org/name", ":x", "PATH:x")
        ),
        ("path:nowhere", {}, errors.MissingFileError, "nowhere"),
        ("path:shelf/notes.txt", {}, errors.BadSourceError, "notes.txt"),
        (f"path:shelf/{GGUF}", {"file": "Q8_0"}, errors.BadSourceError, "Q8_0"),
        (f"path:shelf/{GGUF}", {"sha256": "0" * 64}, errors.HashMismatchError, GGUF),
        ("path:shelf", {"file": "Q5_K_M"}, errors.QuantizationNotFoundError, "Q5_K_M"),
        ("path:shelf", {"revision": "main"}, errors.BadSourceError, "revision"),
        ("path:shelf/empty", {}, errors.MissingFileError, "empty"),
        *(
            (f"pypi:{name}", {}, errors.BadSourceError, "name==version")
            for name in ("--index-url=x", "a b", "x>=1", "x==", "../x", "x[extra]")
        ),
    ):
        with pytest.raises(errors.LoadError, match=words) as caught:
            fetched(source, tmp_path, **changes)
        assert type(caught.value) is error, source
        assert caught.value.failure.code == error.code
        assert caught.value.failure.message == str(caught.value)


@each_case("size", [0, 4095, 4096, 50_000])
def test_a_pinned_file_must_match_and_its_hash_reports_progress(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes, and a load without any progress counts as stalled."""
    monkeypatch.setattr(disk, "BUFFER_BYTES", 1000)
    monkeypatch.setattr(disk, "CHUNK_BYTES", 4096)
    path, reported = tmp_path / "x.gguf", list[LoadProgress]()
    path.write_bytes(bytes(index % 251 for index in range(size)))
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    check_sha256(path, right, reported.append)
    assert len(reported) == size // 4096
    assert all(one.stage is LoadStage.PREFLIGHT and one.total == size for one in reported)
    assert [one.done for one in reported] == sorted({one.done for one in reported})
    with pytest.raises(errors.HashMismatchError, match=right):
        check_sha256(path, "0" * 64)
    assert names(f"path:{path}", tmp_path, sha256=right.upper()) == ["x.gguf"]


@each_case(("number", "code"), [(errno.ENOSPC, "disk_full"), (errno.EACCES, "download_failed")])
def test_fetching_reports_what_is_there_or_what_a_full_disk_broke_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, code: str
) -> None:
    """The latter is among what is removed."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"weights")

    def outcome(source: str) -> Fetched | FetchFailed:
        asked = FetchOrder(spec=spec(source), cache_dir=str(tmp_path), free_memory_bytes=1 << 30)
        return fetch.fetch(asked, lambda _: None)

    assert outcome(f"path:{file}") == Fetched(weights=[str(file)], weight_bytes=7)
    repository = hub_sources.repository_dir(hub_sources.hub_cache_dir(tmp_path), "org/tiny")
    partial = repository / "blobs" / "blob.incomplete"

    def break_off(*_: Any) -> None:
        cached.pending_add(
            repository, "one", {"a.gguf": cached.PendingFile(num_bytes=9, etag="blob")}
        )
        partial.parent.mkdir(parents=True)
        partial.write_bytes(b"123")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fetch, "fetch_files", break_off)
    failed = outcome("huggingface:org/tiny")
    assert isinstance(failed, FetchFailed)
    assert failed.failure.code == code and os.strerror(number) in failed.failure.message
    assert failed.new_files == {"huggingface:org/tiny@one": ["a.gguf"]}
    Fetcher(tmp_path, lambda: 1).remove(failed.new_files)
    assert not partial.exists() and not repository.exists()


@pytest.fixture
def hubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeHub, FakeHub]]:
    """Two named sources with the same ``org/tiny``: lab, which asks for a token, and helexa."""
    files = {GGUF: b"lab " * 500, "tokenizer.json": b"{}"}
    others = {GGUF: b"helexa " * 700, "tokenizer.json": b"[]"}
    with (
        serving(FakeHub(files, commit="a" * 40, token="lab-secret")) as lab,
        serving(FakeHub(others, commit="a" * 40)) as helexa,
    ):
        monkeypatch.setenv("HF_TOKEN", "hf-secret")
        monkeypatch.setenv("LAB_TOKEN", "lab-secret")
        monkeypatch.setenv(SOURCES, f"lab={lab.url} token=LAB_TOKEN,helexa={helexa.url}")
        yield lab, helexa


Hubs = tuple[FakeHub, FakeHub]
LAB, HELEXA = "lab:org/tiny", "helexa:org/tiny"


def test_two_sources_share_neither_files_nor_tokens(
    hubs: Hubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab, helexa), cache = hubs, tmp_path / "cache"
    of_lab, of_helexa = (fetched(source, tmp_path, file="Q4_0") for source in (LAB, HELEXA))
    for files, scheme, hub in ((of_lab, "lab", lab), (of_helexa, "helexa", helexa)):
        (path,) = files.weights
        assert path.read_bytes() == hub.files[GGUF]
        assert path.resolve().is_relative_to(cache / "sources" / scheme)
        assert path.is_relative_to(cache / "sources" / scheme)
    assert not (cache / "huggingface").exists()
    sources.fetch_tokenizer(HELEXA, cache, lambda _: None)
    assert (sources.hub_identity(spec(LAB)), sources.hub_identity(spec(HELEXA))) == (
        lab.commit,
        helexa.commit,
    )
    assert (lab.tokens, helexa.tokens) == ({"Bearer lab-secret"}, {None})
    assert [one.source for one in cached.list_cached(cache)] == [HELEXA, LAB]
    revision = cached.list_cached(cache)[0].revision
    assert of_helexa.directory == cached.cached_directory(cache, HELEXA, revision)
    monkeypatch.delenv(SOURCES)  # files of a source that is no longer named
    assert cached.delete_cached(cache, LAB, revision) > 0
    assert [one.source for one in cached.list_cached(cache)] == [HELEXA]
    assert of_helexa.weights[0].exists()
    with pytest.raises(errors.BadSourceError, match="nothing to delete"):
        cached.delete_cached(cache, "other:org/tiny", revision)
    # A cache may lie elsewhere and is still the source's own.
    shared = tmp_path / "shared"
    of_lab = f"lab={lab.url} token=LAB_TOKEN cache={shared}"
    monkeypatch.setenv(SOURCES, f"{of_lab},helexa={helexa.url} cache={shared}")
    for source, scheme in ((LAB, "lab"), (HELEXA, "helexa")):
        found = fetched(source, tmp_path, file="Q4_0").directory
        assert found.is_relative_to(shared / scheme)
    directories = hub_sources.hub_directories(cache)
    assert len(set(directories.values())) == len(directories) == 3
    monkeypatch.delenv("LAB_TOKEN")
    with pytest.raises(errors.RepoFetchFailedError, match=r"lab has no .* LAB_TOKEN may not"):
        fetched(LAB, tmp_path / "other", file="Q4_0")
    known = "huggingface:, lab:, helexa:, path:, pypi: .* HELEXA_SOURCES"
    with pytest.raises(errors.BadSourceError, match=f"'other:org/tiny' is not .* {known}"):
        fetched("other:org/tiny", tmp_path)
    with pytest.raises(errors.BadSourceError, match="other is no source"):
        sources.fetch_tokenizer("other:org/tiny", tmp_path, lambda _: None)
    assert sources.parse_source(LAB).scheme == "lab"
    schemes = hub_sources.hub_schemes()
    asked = ollama_models.parse_pull(b'{"model": "lab:org/tiny"}', named_sources=schemes)
    assert (asked.source, asked.model) == (LAB, None)
    # The original of a GGUF is asked of its own source: else anybody could put a template under
    # that name elsewhere.
    path = Path("/cache/sources/lab/models--org--tiny-GGUF/snapshots/a/x.gguf")
    assert (original_of(path, "lab"), original_of(path)) == ([LAB], ["org/tiny"])


def test_proxies_of_the_environment(
    hubs: Hubs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine is asked directly, another one through the proxy, and never by one that is not
    supported."""
    lab, helexa = hubs
    set_proxies(monkeypatch, http_proxy=lab.url, ALL_PROXY=SOCKS)
    monkeypatch.setenv(SOURCES, f"lab=http://lab.example token=LAB_TOKEN,helexa={helexa.url}")
    found = fetched(HELEXA, tmp_path, file="Q4_0").weights[0]
    assert found.read_bytes() == helexa.files[GGUF] and lab.asked == []
    assert fetched(LAB, tmp_path, file="Q4_0").weights[0].read_bytes() == lab.files[GGUF]
    assert all(path.startswith("http://lab.example/") for path, _ in lab.asked)
    monkeypatch.delenv("http_proxy")
    with pytest.raises(
        errors.DownloadFailedError, match="asked: ALL_PROXY names a proxy that is not"
    ):
        fetched(LAB, tmp_path / "other", file="Q4_0")
    assert sources.hub_identity(spec(LAB)) is None


@pytest.mark.slow
def test_a_wheel_is_fetched_checked_and_extracted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By real pip, of an index on loopback. What a killed process left is cleared."""
    weights, file = random.Random(1).randbytes(3_000_000), io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('never imported')")
        archive.writestr(f"tiny_model/{GGUF}", weights)
        for name, content in (
            ("METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", content)
    sha256, cache = hashlib.sha256(file.getvalue()).hexdigest(), tmp_path / "cache"
    left = cache / "pypi" / ".unfinished" / "contents" / "half.gguf"
    reported: list[LoadProgress] = []
    asked = spec("pypi:tiny-model==1.0", sha256=sha256)
    with serving(FakeHub({"tiny_model-1.0-py3-none-any.whl": file.getvalue()})) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
        with pytest.raises(errors.HashMismatchError, match=sha256):
            pypi.download("tiny-model", "0" * 64, cache, lambda _: None)
        for requirement in ("no-such-model", "tiny-model==2.0"):
            with pytest.raises(errors.DownloadFailedError, match=requirement):
                pypi.download(requirement, None, cache, lambda _: None)
        assert [path.name for path in (cache / "pypi").iterdir()] == [".lock"]
        left.parent.mkdir(parents=True)
        left.write_bytes(b"GGUF")
        files = sources.fetch_files(asked, cache, 10**9, reported.append)
    assert files.weights[0].read_bytes() == weights and not left.exists()
    assert not list(cache.rglob("*.py")), "code of a model package is not even written"
    assert {path.name for path in (cache / "pypi").iterdir()} == {
        ".lock",
        f"tiny-model-1.0-{sha256[:12]}",
    }
    assert reported[-1].stage is LoadStage.DOWNLOADING
    assert reported[-1].done >= reported[-1].total - 100_000 > 2_800_000, "as pip prints the size"
    reported.clear()
    assert sources.fetch_files(asked, cache, 10**9, reported.append) == files
    assert reported == [], "nothing is left to download"


def test_a_model_directory_inside_a_wheel(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingFileError, match=r"neither a \.gguf"):
        pypi.model_directory(tmp_path)
    (tmp_path / "package" / "deep").mkdir(parents=True)
    for folder in ("package", "package/deep"):
        (tmp_path / folder / "config.json").touch()
    assert pypi.model_directory(tmp_path) == tmp_path / "package"

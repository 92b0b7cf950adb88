"""The hub source against a small hub of our own, spoken to over HTTP by huggingface_hub itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from inference.loading.sources import disk
from inference.loading.sources import hub as hub_module
from inference.loading.sources.cached import list_cached, partial_of
from inference.loading.sources.files import TEXT_FILES, ModelFiles
from inference.loading.sources.hub_sources import HubSource, hub_cache_dir, repository_dir
from inference.loading.sources.huggingface import Repository
from inference.neuron.loads.files import Fetcher
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import (
    BadSourceError,
    DiskFullError,
    DownloadFailedError,
    LoadError,
    QuantizationNotFoundError,
    RepoFetchFailedError,
    UnknownArchitectureError,
)
from inference.protocol.load_report import LoadProgress
from tests.inference.loading.fake_hub import FakeHub, serving

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "README.md": b"no",
    "x-Q4_0.gguf": b"q4" * 5000,
    "x-Q8_0.gguf": b"q8" * 9000,
}
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub(dict(FILES))) as hub:
        yield hub


def download(
    url: str, cache: Path, *, repo: str = "org/tiny", wanted: str | None = "Q4_0"
) -> tuple[ModelFiles, list[LoadProgress]]:
    reported: list[LoadProgress] = []
    repository = Repository(repo, None, cache, reported.append, source=HubSource(endpoint=url))
    return repository.download(wanted, 10**9), reported


def download_texts(repo: str, url: str, cache: Path) -> Path | None:
    repository = Repository(repo, None, cache, lambda _: None, source=HubSource(endpoint=url))
    return repository.download_folder(TEXT_FILES)


def test_the_chosen_quant_the_texts_and_an_mmproj_file_are_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, reported = download(hub.url, tmp_path)
    assert files.weights[0].read_bytes() == FILES["x-Q4_0.gguf"]
    assert files.directory.is_relative_to(tmp_path / "huggingface")
    names = ["config.json", "tokenizer.json", "x-Q4_0.gguf"]
    assert sorted(path.name for path in files.directory.iterdir()) == names
    assert (reported[-1].done, reported[-1].total) == (10_004, 10_004)
    hub.files["mmproj-F16.gguf"] = b"v" * 3000
    for architecture, file, is_fetched in (
        ("clip", "Q4_0", True),  # the hub has read the mmproj file
        ("llama", "Q4_0", True),  # it may be SmolVLM's
        ("phi3", "Q4_0", False),
        ("qwen3vl", "Q4_0+none", False),
    ):
        hub.gguf = {"architecture": architecture}
        files, reported = download(hub.url, tmp_path / architecture, wanted=file)
        there = (files.directory / "mmproj-F16.gguf").is_file()
        assert (files.projector is not None) is is_fetched is there
        assert reported[-1].total == 10_004 + 3000 * is_fetched
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    offline, _ = download(hub.url, tmp_path / "clip")
    assert offline.projector is not None and offline.projector.read_bytes() == b"v" * 3000


def test_what_an_embedding_model_declares_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    """A file in a folder too, and the tokenizer where that alone lowers the case, as that of
    BAAI/bge-small-en; what other runtimes want is left there."""
    bert = {"model_type": "bert", "architectures": ["BertModel"], "max_position_embeddings": 512}
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
    modules = [{"path": path, "type": f"sentence_transformers.models.{k}"} for path, k in kinds]
    sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128}
    declared: dict[str, object] = {
        "config.json": bert | sizes,
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"do_lower_case": True},
        "tokenizer.json": {"normalizer": {"type": "BertNormalizer", "lowercase": True}},
        "model.safetensors": "weights",
    }
    hub.files |= {name: json.dumps(content).encode() for name, content in declared.items()}
    hub.files["onnx/model.onnx"] = b"other"
    files, _ = download(hub.url, tmp_path, wanted=None)
    for name in declared:
        assert (files.directory / name).read_bytes() == hub.files[name]
    assert not (files.directory / "onnx").exists()


def test_no_weights_are_fetched_for_a_load_that_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    """The hub reports the architecture of GGUF files."""
    reformer = {"config.json": b'{"model_type": "reformer"}', "model.safetensors": b"weights"}
    refused: tuple[tuple[dict[str, bytes], str | None, str | None, type[LoadError], str], ...] = (
        (reformer, None, None, UnknownArchitectureError, "reformer"),
        ({}, "rwkv", "Q4_0", UnknownArchitectureError, "rwkv"),
        ({}, "llama", "Q4_1", QuantizationNotFoundError, "Q4_0"),
    )
    for files, architecture, wanted, error, words in refused:
        hub.files = FILES | files
        hub.gguf = {"architecture": architecture, "total": 1}
        hub.ranges.clear()
        with pytest.raises(error, match=words):
            download(hub.url, tmp_path, wanted=wanted)
        assert bool(hub.fetched) is bool(files) and "model.safetensors" not in hub.fetched


def test_a_full_disk_is_reported_and_what_is_cached_needs_no_room_and_no_network(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_disk_bytes", lambda directory: 3 * 10**9)
    hub.sizes = {"x-Q4_0.gguf": 40 * 10**9}
    with pytest.raises(DiskFullError, match=r"40\.00 GB more .* 3\.00 GB are free"):
        download(hub.url, tmp_path)
    assert hub.fetched == []
    hub.sizes.clear()
    texts = download_texts("org/tiny", hub.url, tmp_path)
    assert texts is not None
    assert sorted(one.name for one in texts.iterdir()) == ["config.json", "tokenizer.json"]
    first, _ = download(hub.url, tmp_path)
    monkeypatch.setattr(disk, "free_disk_bytes", lambda directory: 0)
    hub.ranges.clear()
    assert download(hub.url, tmp_path)[0] == first and hub.fetched == []
    assert download_texts("org/tiny", NOBODY, tmp_path) == texts
    with pytest.raises(DownloadFailedError, match="cannot be asked"):
        download(NOBODY, tmp_path / "empty")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download(hub.url, tmp_path)[0].weights == first.weights
    with pytest.raises(DownloadFailedError, match="org/other is not in the cache"):
        download(hub.url, tmp_path, repo="org/other")


def test_refusals_are_named(hub: FakeHub, tmp_path: Path) -> None:
    refused: tuple[tuple[str, type[LoadError], str], ...] = (
        ("org/none", RepoFetchFailedError, "no repository org/none"),
        ("org/gated", RepoFetchFailedError, "gated.*token that was granted access.*HF_TOKEN"),
        ("org/broken", DownloadFailedError, "org/broken could not be downloaded"),
        ("a/b/c", BadSourceError, "huggingface:org/name"),
    )
    for repo, error, named in refused:
        with pytest.raises(error, match=named):
            download(hub.url, tmp_path, repo=repo)
        with pytest.raises(error):
            download_texts(repo, hub.url, tmp_path)


def test_the_users_own_cache_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_cache_dir(tmp_path) == tmp_path / "huggingface"
    for name, value, expected in (
        ("HF_HOME", "/somewhere", "/somewhere/hub"),
        ("HF_HUB_CACHE", "/elsewhere", "/elsewhere"),
        ("HELEXA_HF_CACHE", "/ours", "/ours"),
    ):
        monkeypatch.setenv(name, value)
        assert hub_cache_dir(tmp_path) == Path(expected)


WEIGHTS = random.Random(8).randbytes(1_500_000)
HALF = 1_200_000
WRITTEN = constants.DOWNLOAD_CHUNK_SIZE
"""What huggingface_hub writes at once, of what it has received."""
LARGE_BYTES = WRITTEN * 3 // 2
SPEC = LoadSpec(job_id="j", model="m", source="huggingface:org/tiny", file="Q4_0")


@pytest.fixture
def large_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub.files = {"tokenizer.json": b"{}", "x-Q4_0.gguf": WEIGHTS}
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    return hub


def partial(hub: FakeHub, cache: Path) -> Path:
    repository = repository_dir(hub_cache_dir(cache), "org/tiny")
    return partial_of(repository / "blobs" / hub.etag("x-Q4_0.gguf"))


def fetched(cache: Path, report: Callable[[LoadProgress], None] = lambda _: None) -> Path:
    found = Fetcher(cache, lambda: 1 << 30).fetch(SPEC, report, lambda: False)
    assert found is not None
    return Path(found.weights[0])


@pytest.mark.slow
def test_a_pull_after_a_cancel_asks_for_the_rest_alone(large_hub: FakeHub, tmp_path: Path) -> None:
    large_hub.files["x-Q4_0.gguf"] = large = random.Random(8).randbytes(LARGE_BYTES)
    large_hub.stop_at = LARGE_BYTES * 4 // 5
    file = partial(large_hub, tmp_path)
    cancelled = Fetcher(tmp_path, lambda: 1 << 30).fetch(
        SPEC, lambda _: None, lambda: file.is_file() and file.stat().st_size >= WRITTEN
    )
    assert cancelled is None
    large_hub.stop_at, done = None, file.stat().st_size
    (model,) = list_cached(tmp_path)
    assert model.is_partial and model.partial_bytes == done
    assert model.wanted_bytes == LARGE_BYTES + 2
    reported: list[LoadProgress] = []
    assert fetched(tmp_path, reported.append).read_bytes() == large
    asked = [wanted for name, wanted in large_hub.ranges if name == "x-Q4_0.gguf"]
    assert asked == ["", f"bytes={done}-"]
    assert min(one.done for one in reported) >= done and reported[-1].done == reported[-1].total
    (model,) = list_cached(tmp_path)
    assert not model.is_partial and model.partial_bytes == 0
    assert not list(tmp_path.rglob("*.incomplete"))


PIECES = ["bytes=615000-1014999", "bytes=1015000-1414999", "bytes=1415000-1499999"]


def test_whatever_came_before_the_file_is_right_in_the_end(
    large_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file too large for one answer comes in pieces; what is damaged comes anew, once."""
    target = tmp_path / large_hub.etag("x-Q4_0.gguf")
    url, sha256 = f"{large_hub.url}/org/tiny/resolve/main/x-Q4_0.gguf", target.name
    damaged = bytearray(WEIGHTS)
    damaged[17] ^= 1
    for large_hub.serves_ranges, content, piece_bytes, asked, num_asked in (
        (True, damaged[:HALF], None, [f"bytes={HALF}-"], 2),
        (False, damaged[:HALF], None, [f"bytes={HALF}-"], None),
        *((serves, bytes(len(WEIGHTS) + 1), None, [""], 1) for serves in (True, False)),
        *((serves, WEIGHTS, None, [], 0) for serves in (True, False)),
        (True, WEIGHTS[:615_000], 400_000, PIECES, 3),
        (True, damaged[:615_000], 400_000, PIECES, 7),
    ):
        if piece_bytes is not None:
            monkeypatch.setattr(hub_module, "PIECE_BYTES", piece_bytes)
        target.unlink(missing_ok=True)
        partial_of(target).write_bytes(content)
        large_hub.ranges.clear()
        hub_module.transfer(url, target, num_bytes=len(WEIGHTS), headers={}, sha256=sha256)
        assert target.read_bytes() == WEIGHTS and not partial_of(target).exists()
        ranges = [wanted for _, wanted in large_hub.ranges]
        assert ranges[: len(asked)] == asked and num_asked in (None, len(ranges))


def test_a_token_stays_with_the_hub_and_a_range_reaches_its_store(
    large_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving(FakeHub(large_hub.files)) as large_hub.store:
        file = partial(large_hub, tmp_path)
        file.parent.mkdir(parents=True)
        file.write_bytes(WEIGHTS[:HALF])
        assert fetched(tmp_path).read_bytes() == WEIGHTS
        assert ("x-Q4_0.gguf", f"bytes={HALF}-") in large_hub.store.ranges
        asked = {token for path, token in large_hub.asked if "/resolve/" in path}
        assert asked == {"Bearer hf_secret"} and large_hub.store.tokens == {None}

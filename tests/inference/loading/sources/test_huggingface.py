"""The hub source against a small hub of our own, spoken to over HTTP by huggingface_hub itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from inference.loading.sources import disk, huggingface
from inference.loading.sources.files import TEXT_FILES, ModelFiles
from inference.loading.sources.hub_sources import HubSource, hub_cache_dir
from inference.loading.sources.huggingface import Repository
from inference.protocol.load_errors import (
    BadSourceError,
    DiskFullError,
    DownloadFailedError,
    LoadError,
    QuantizationNotFoundError,
    RepoFetchFailedError,
    UnknownArchitectureError,
)
from inference.protocol.load_progress import LoadProgress
from tests.inference.loading.fake_hub import FakeHub, serving

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "README.md": b"no",
    "x-Q4_0.gguf": b"q4" * 5000,
    "x-Q8_0.gguf": b"q8" * 9000,
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub(dict(FILES))) as hub:
        yield hub


def download(
    url: str, cache: Path, *, repo: str = "org/tiny", wanted: str | None = "Q4_0"
) -> tuple[ModelFiles, list[LoadProgress]]:
    reported: list[LoadProgress] = []
    repository = Repository(repo, None, cache, reported.append, source=HubSource(endpoint=url))
    files = repository.download(wanted, 10**9)
    return files, reported


def download_texts(repo: str, url: str, cache: Path) -> Path | None:
    repository = Repository(repo, None, cache, lambda _: None, source=HubSource(endpoint=url))
    return repository.download_folder(TEXT_FILES)


def test_only_the_chosen_quant_and_the_texts_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    files, reported = download(hub.url, tmp_path)
    assert files.weights[0].read_bytes() == FILES["x-Q4_0.gguf"]
    assert files.directory.is_relative_to(tmp_path / "huggingface")
    assert sorted(path.name for path in files.directory.iterdir()) == [
        "config.json",
        "tokenizer.json",
        "x-Q4_0.gguf",
    ]
    total = sum(len(FILES[name]) for name in ("config.json", "tokenizer.json", "x-Q4_0.gguf"))
    assert (reported[-1].done, reported[-1].total) == (total, total)


def test_an_mmproj_file_is_fetched_for_a_model_that_reads_images(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["mmproj-F16.gguf"] = b"v" * 3000
    for architecture, file, is_fetched in (
        ("qwen3vl", "Q4_0", True),
        ("clip", "Q4_0", True),  # the hub has read the mmproj file
        ("llama", "Q4_0", True),  # it may be SmolVLM's
        ("phi3", "Q4_0", False),
        ("qwen3vl", "Q4_0+none", False),
    ):
        hub.gguf = {"architecture": architecture}
        cache = tmp_path / f"{architecture} {file}"
        files, reported = download(hub.url, cache, wanted=file)
        there = (files.directory / "mmproj-F16.gguf").is_file()
        assert (files.projector is not None) is is_fetched is there
        assert reported[-1].total == 10_004 + 3000 * is_fetched
    with_it = tmp_path / "qwen3vl Q4_0"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    offline, _ = download(hub.url, with_it)
    assert offline.projector is not None and offline.projector.read_bytes() == b"v" * 3000


def test_what_an_embedding_model_declares_is_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in a folder too; what other runtimes want is left there."""
    wanted = ("model.safetensors", "modules.json", "sentence_bert_config.json")
    for name in (*wanted, "1_Pooling/config.json", "onnx/model.onnx"):
        hub.files[name] = name.encode()
    monkeypatch.setattr(huggingface, "check_directory_config", lambda directory: None)
    files, _ = download(hub.url, tmp_path, wanted=None)
    pooling = files.directory / "1_Pooling" / "config.json"
    assert pooling.read_bytes() == b"1_Pooling/config.json"
    assert all((files.directory / name).is_file() for name in wanted)
    assert not (files.directory / "onnx").exists()


def test_a_model_whose_tokenizer_lowers_the_case_is_judged_with_its_tokenizer(
    hub: FakeHub, tmp_path: Path
) -> None:
    """BAAI/bge-small-en is published so."""
    transformer = {"path": "", "type": "sentence_transformers.models.Transformer"}
    pooling = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    declared: dict[str, object] = {
        "config.json": {
            "model_type": "bert",
            "architectures": ["BertModel"],
            "vocab_size": 128,
            "hidden_size": 64,
            "intermediate_size": 128,
            "max_position_embeddings": 512,
        },
        "modules.json": [transformer, pooling],
        "1_Pooling/config.json": {"pooling_mode_cls_token": True},
        "sentence_bert_config.json": {"do_lower_case": True},
        "tokenizer.json": {"normalizer": {"type": "BertNormalizer", "lowercase": True}},
    }
    for name, content in declared.items():
        hub.files[name] = json.dumps(content).encode()
    hub.files["model.safetensors"] = b"weights"
    files, _ = download(hub.url, tmp_path, wanted=None)
    assert files.weights[0].read_bytes() == b"weights"


def test_no_weights_are_fetched_of_an_architecture_that_nobody_runs(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.files["config.json"] = b'{"model_type": "reformer"}'
    hub.files["model.safetensors"] = b"weights"
    with pytest.raises(UnknownArchitectureError, match="reformer"):
        download(hub.url, tmp_path, wanted=None)
    assert "model.safetensors" not in hub.fetched


def test_the_hub_reports_the_architecture_of_gguf_files(hub: FakeHub, tmp_path: Path) -> None:
    hub.gguf = {"architecture": "rwkv", "total": 1}
    with pytest.raises(UnknownArchitectureError, match="rwkv"):
        download(hub.url, tmp_path)
    assert hub.fetched == []


def test_a_full_disk_is_reported_with_both_numbers_before_anything_is_fetched(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_disk_bytes", lambda directory: 3 * 10**9)
    hub.files["x-Q4_0.gguf"] = b"q4"
    hub.sizes = {"x-Q4_0.gguf": 40 * 10**9}
    with pytest.raises(DiskFullError, match=r"40\.00 GB more .* 3\.00 GB are free"):
        download(hub.url, tmp_path)
    assert hub.fetched == []


def test_what_is_cached_needs_no_room(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(hub.url, tmp_path)
    monkeypatch.setattr(disk, "free_disk_bytes", lambda directory: 0)
    files, _ = download(hub.url, tmp_path)
    assert files.weights[0].read_bytes() == FILES["x-Q4_0.gguf"]


def test_a_tokenizer_is_fetched_without_weights_and_kept(hub: FakeHub, tmp_path: Path) -> None:
    directory = download_texts("org/tiny", hub.url, tmp_path)
    names = ["config.json", "tokenizer.json"]
    assert directory and sorted(path.name for path in directory.iterdir()) == names
    assert download_texts("org/tiny", "http://127.0.0.1:9", tmp_path) == directory


@pytest.mark.parametrize("repo", ["org/gated", "org/broken", "org/none", "no name"])
def test_a_tokenizer_that_cannot_be_had_is_a_load_error(
    hub: FakeHub, tmp_path: Path, repo: str
) -> None:
    with pytest.raises(LoadError):
        download_texts(repo, hub.url, tmp_path)


def test_what_is_cached_is_not_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    first, _ = download(hub.url, tmp_path)
    hub.ranges.clear()
    second, _ = download(hub.url, tmp_path)
    assert second == first
    assert hub.fetched == []


def test_without_a_network_the_cache_answers(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = download(hub.url, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download(hub.url, tmp_path)[0].weights == first.weights
    with pytest.raises(DownloadFailedError, match="org/other is not in the cache"):
        download(hub.url, tmp_path, repo="org/other")


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(DownloadFailedError, match="cannot be asked"):
        download("http://127.0.0.1:9", tmp_path)


@pytest.mark.parametrize(
    ("repo", "error", "named"),
    [
        ("org/none", RepoFetchFailedError, "no repository org/none"),
        ("org/gated", RepoFetchFailedError, "gated.*token that was granted access.*HF_TOKEN"),
        ("org/broken", DownloadFailedError, "org/broken could not be downloaded"),
        ("a/b/c", BadSourceError, "huggingface:org/name"),
    ],
)
def test_refusals_are_named(
    hub: FakeHub, tmp_path: Path, repo: str, error: type[LoadError], named: str
) -> None:
    with pytest.raises(error, match=named):
        download(hub.url, tmp_path, repo=repo)


def test_a_quant_that_is_not_there(hub: FakeHub, tmp_path: Path) -> None:
    with pytest.raises(QuantizationNotFoundError, match="Q4_0"):
        download(hub.url, tmp_path, wanted="Q4_1")
    assert hub.fetched == []


def test_the_users_own_cache_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_cache_dir(tmp_path) == tmp_path / "huggingface"
    monkeypatch.setenv("HF_HOME", "/somewhere")
    assert hub_cache_dir(tmp_path) == Path("/somewhere/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/elsewhere")
    assert hub_cache_dir(tmp_path) == Path("/elsewhere")
    monkeypatch.setenv("HELEXA_HF_CACHE", "/ours")
    assert hub_cache_dir(tmp_path) == Path("/ours")

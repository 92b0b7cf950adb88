"""The hub source against a small hub of our own, spoken to over HTTP by huggingface_hub itself."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

from inference.loading.sources import disk, huggingface
from inference.loading.sources.files import ModelFiles
from inference.loading.sources.hub import HuggingFaceHub
from inference.loading.sources.hub_sources import hub_cache_dir
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

COMMIT = "c0ffee" + "0" * 34
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "README.md": b"no",
    "x-Q4_0.gguf": b"q4" * 5000,
    "x-Q8_0.gguf": b"q8" * 9000,
}


class FakeHub(BaseHTTPRequestHandler):
    """One repository, org/tiny; org/gated is gated, org/broken answers with errors."""

    asked: list[str] = []
    gguf: dict[str, object] | None = None
    sizes: dict[str, int] = {}
    """Declared sizes of files that are larger than their content here."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        FakeHub.asked.append(f"{self.command} {self.path}")
        path = self.path.split("?")[0]
        if path.startswith("/org/tiny/resolve/"):
            name = path.removeprefix("/org/tiny/resolve/").partition("/")[2]
            self._send(200, FILES[name], with_body, etag=hashlib.sha256(FILES[name]).hexdigest())
        elif path.startswith("/api/models/org/tiny"):
            siblings = [
                {"rfilename": name, "size": FakeHub.sizes.get(name, len(body))}
                for name, body in FILES.items()
            ]
            listing = {"id": "org/tiny", "sha": COMMIT, "siblings": siblings, "gguf": FakeHub.gguf}
            self._send(200, json.dumps(listing).encode(), with_body)
        elif "gated" in path:
            self._send(403, b"{}", with_body, error="GatedRepo")
        elif "broken" in path:
            self._send(500, b"{}", with_body)
        else:
            self._send(404, b"{}", with_body, error="RepoNotFound")

    def _send(
        self, status: int, body: bytes, with_body: bool, *, etag: str = "", error: str = ""
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{etag}"')
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    FakeHub.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_cache_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)


def download(
    endpoint: str, cache: Path, *, repo: str = "org/tiny", wanted: str | None = "Q4_0"
) -> tuple[ModelFiles, list[LoadProgress]]:
    reported: list[LoadProgress] = []
    files = huggingface.download(
        repo,
        revision=None,
        wanted=wanted,
        cache_dir=cache,
        free_bytes=10**9,
        on_progress=reported.append,
        hub=HuggingFaceHub(endpoint),
    )
    return files, reported


def test_only_the_chosen_quant_and_the_texts_are_fetched(endpoint: str, tmp_path: Path) -> None:
    files, reported = download(endpoint, tmp_path)
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
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "mmproj-F16.gguf", b"v" * 3000)
    for architecture, file, is_fetched in (
        ("qwen3vl", "Q4_0", True),
        ("clip", "Q4_0", True),  # the hub has read the mmproj file
        ("llama", "Q4_0", True),  # it may be SmolVLM's
        ("phi3", "Q4_0", False),
        ("qwen3vl", "Q4_0+none", False),
    ):
        monkeypatch.setattr(FakeHub, "gguf", {"architecture": architecture})
        cache = tmp_path / f"{architecture} {file}"
        files, reported = download(endpoint, cache, wanted=file)
        there = (files.directory / "mmproj-F16.gguf").is_file()
        assert (files.projector is not None) is is_fetched is there
        assert reported[-1].total == 10_004 + 3000 * is_fetched
    with_it = tmp_path / "qwen3vl Q4_0"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    offline, _ = download(endpoint, with_it)
    assert offline.projector is not None and offline.projector.read_bytes() == b"v" * 3000


def test_what_an_embedding_model_declares_is_fetched(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in a folder too; what other runtimes want is left there."""
    wanted = ("model.safetensors", "modules.json", "sentence_bert_config.json")
    for name in (*wanted, "1_Pooling/config.json", "onnx/model.onnx"):
        monkeypatch.setitem(FILES, name, name.encode())
    monkeypatch.setattr(huggingface, "check_directory_config", lambda directory: None)
    files, _ = download(endpoint, tmp_path, wanted=None)
    pooling = files.directory / "1_Pooling" / "config.json"
    assert pooling.read_bytes() == b"1_Pooling/config.json"
    assert all((files.directory / name).is_file() for name in wanted)
    assert not (files.directory / "onnx").exists()


def test_a_model_whose_tokenizer_lowers_the_case_is_judged_with_its_tokenizer(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        monkeypatch.setitem(FILES, name, json.dumps(content).encode())
    monkeypatch.setitem(FILES, "model.safetensors", b"weights")
    files, _ = download(endpoint, tmp_path, wanted=None)
    assert files.weights[0].read_bytes() == b"weights"


def test_no_weights_are_fetched_of_an_architecture_that_nobody_runs(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "config.json", b'{"model_type": "reformer"}')
    monkeypatch.setitem(FILES, "model.safetensors", b"weights")
    with pytest.raises(UnknownArchitectureError, match="reformer"):
        download(endpoint, tmp_path, wanted=None)
    assert not any("model.safetensors" in asked for asked in FakeHub.asked)


def test_the_hub_reports_the_architecture_of_gguf_files(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeHub, "gguf", {"architecture": "rwkv", "total": 1})
    with pytest.raises(UnknownArchitectureError, match="rwkv"):
        download(endpoint, tmp_path)
    assert not any("resolve" in asked for asked in FakeHub.asked)


def test_a_full_disk_is_reported_with_both_numbers_before_anything_is_fetched(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_disk_bytes", lambda directory: 3 * 10**9)
    monkeypatch.setitem(FILES, "x-Q4_0.gguf", b"q4")
    monkeypatch.setattr(FakeHub, "sizes", {"x-Q4_0.gguf": 40 * 10**9})
    with pytest.raises(DiskFullError, match=r"40\.00 GB more .* 3\.00 GB are free"):
        download(endpoint, tmp_path)
    assert not any("resolve" in asked for asked in FakeHub.asked)


def test_what_is_cached_needs_no_room(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(endpoint, tmp_path)
    monkeypatch.setattr(disk, "free_disk_bytes", lambda directory: 0)
    files, _ = download(endpoint, tmp_path)
    assert files.weights[0].read_bytes() == FILES["x-Q4_0.gguf"]


def test_a_tokenizer_is_fetched_without_weights_and_kept(endpoint: str, tmp_path: Path) -> None:
    hub = HuggingFaceHub(endpoint)
    directory = huggingface.download_tokenizer("org/tiny", tmp_path, lambda _: None, hub)
    names = ["config.json", "tokenizer.json"]
    assert sorted(path.name for path in directory.iterdir()) == names
    nobody = HuggingFaceHub("http://127.0.0.1:9")
    assert huggingface.download_tokenizer("org/tiny", tmp_path, lambda _: None, nobody) == directory


@pytest.mark.parametrize("repo", ["org/gated", "org/broken", "org/none", "no name"])
def test_a_tokenizer_that_cannot_be_had_is_a_load_error(
    endpoint: str, tmp_path: Path, repo: str
) -> None:
    with pytest.raises(LoadError):
        huggingface.download_tokenizer(repo, tmp_path, lambda _: None, HuggingFaceHub(endpoint))


def test_what_is_cached_is_not_fetched_again(endpoint: str, tmp_path: Path) -> None:
    first, _ = download(endpoint, tmp_path)
    FakeHub.asked.clear()
    second, _ = download(endpoint, tmp_path)
    assert second == first
    assert not [line for line in FakeHub.asked if line.startswith("GET /org")]


def test_without_a_network_the_cache_answers(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = download(endpoint, tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert download(endpoint, tmp_path)[0].weights == first.weights
    with pytest.raises(DownloadFailedError, match="org/other is not in the cache"):
        download(endpoint, tmp_path, repo="org/other")


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
    endpoint: str, tmp_path: Path, repo: str, error: type[LoadError], named: str
) -> None:
    with pytest.raises(error, match=named):
        download(endpoint, tmp_path, repo=repo)


def test_a_quant_that_is_not_there(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(QuantizationNotFoundError, match="Q4_0"):
        download(endpoint, tmp_path, wanted="Q4_1")
    assert not any("resolve" in line for line in FakeHub.asked)


def test_the_users_own_cache_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_cache_dir(tmp_path) == tmp_path / "huggingface"
    monkeypatch.setenv("HF_HOME", "/somewhere")
    assert hub_cache_dir(tmp_path) == Path("/somewhere/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/elsewhere")
    assert hub_cache_dir(tmp_path) == Path("/elsewhere")
    monkeypatch.setenv("HELEXA_HF_CACHE", "/ours")
    assert hub_cache_dir(tmp_path) == Path("/ours")

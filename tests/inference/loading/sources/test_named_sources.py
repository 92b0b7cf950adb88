"""Two named sources with the same ``org/tiny``: each is asked with its own token alone, and cached
apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.loading.gguf.tokenizer_files import original_of
from inference.loading.sources.cached import cached_directory, delete_cached, list_cached
from inference.loading.sources.files import ModelFiles
from inference.loading.sources.hub_sources import hub_directories, hub_schemes
from inference.loading.sources.sources import (
    fetch_files,
    fetch_tokenizer,
    hub_identity,
    parse_source,
)
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import (
    BadSourceError,
    DownloadFailedError,
    RepoFetchFailedError,
)
from inference.wire.ollama import models as ollama_models
from tests.inference.loading.fake_hub import FakeHub, serving
from tests.proxies import SOCKS, set_proxies

GGUF = "x-Q4_0.gguf"
SOURCES = "HELEXA_SOURCES"


@pytest.fixture
def lab() -> Iterator[FakeHub]:
    files = {GGUF: b"lab " * 500, "tokenizer.json": b"{}"}
    with serving(FakeHub(files, commit="a" * 40, token="lab-secret")) as hub:
        yield hub


@pytest.fixture
def helexa() -> Iterator[FakeHub]:
    files = {GGUF: b"helexa " * 700, "tokenizer.json": b"[]"}
    with serving(FakeHub(files, commit="a" * 40)) as hub:
        yield hub


@pytest.fixture(autouse=True)
def named(lab: FakeHub, helexa: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf-secret")
    monkeypatch.setenv("LAB_TOKEN", "lab-secret")
    monkeypatch.setenv(SOURCES, f"lab={lab.url} token=LAB_TOKEN,helexa={helexa.url}")


def spec(scheme: str) -> LoadSpec:
    return LoadSpec(job_id="j", model="m", source=f"{scheme}:org/tiny", file="Q4_0")


def fetched(scheme: str, cache: Path) -> ModelFiles:
    return fetch_files(spec(scheme), cache, 10**9, lambda _: None)


def test_two_sources_share_neither_files_of_one_repository_nor_tokens(
    lab: FakeHub, helexa: FakeHub, tmp_path: Path
) -> None:
    (of_lab,), (of_helexa,) = fetched("lab", tmp_path).weights, fetched("helexa", tmp_path).weights
    assert of_lab.read_bytes() == lab.files[GGUF]
    assert of_helexa.read_bytes() == helexa.files[GGUF]
    for path, scheme in ((of_lab, "lab"), (of_helexa, "helexa")):
        assert path.is_relative_to(tmp_path / "sources" / scheme)
        assert path.resolve().is_relative_to(tmp_path / "sources" / scheme)
    assert not (tmp_path / "huggingface").exists()
    fetch_tokenizer("helexa:org/tiny", tmp_path, lambda _: None)
    assert (hub_identity(spec("lab")), hub_identity(spec("helexa"))) == (lab.commit, helexa.commit)
    assert (lab.tokens, helexa.tokens) == ({"Bearer lab-secret"}, {None})


def test_what_a_source_refuses_names_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAB_TOKEN")
    with pytest.raises(RepoFetchFailedError, match=r"the source lab has no .* LAB_TOKEN may not"):
        fetched("lab", tmp_path)


def test_cached_files_are_listed_and_deleted_by_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched("lab", tmp_path)
    kept = fetched("helexa", tmp_path)
    assert [one.source for one in list_cached(tmp_path)] == ["helexa:org/tiny", "lab:org/tiny"]
    revision = list_cached(tmp_path)[0].revision
    assert kept.directory == cached_directory(tmp_path, "helexa:org/tiny", revision)
    monkeypatch.delenv(SOURCES)  # files of a source that is no longer named
    assert delete_cached(tmp_path, "lab:org/tiny", revision) > 0
    assert [one.source for one in list_cached(tmp_path)] == ["helexa:org/tiny"]
    assert kept.weights[0].exists()
    with pytest.raises(BadSourceError, match="nothing to delete"):
        delete_cached(tmp_path, "other:org/tiny", revision)


def test_a_cache_may_lie_elsewhere_and_is_still_its_own(
    lab: FakeHub, helexa: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setenv(
        SOURCES,
        f"lab={lab.url} token=LAB_TOKEN cache={shared},helexa={helexa.url} cache={shared}",
    )
    cache = tmp_path / "cache"
    assert fetched("lab", cache).directory.is_relative_to(shared / "lab")
    assert fetched("helexa", cache).directory.is_relative_to(shared / "helexa")
    directories = hub_directories(cache)
    assert len(set(directories.values())) == len(directories) == 3


def test_proxies_of_the_environment(
    lab: FakeHub, helexa: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine is asked directly, another one through the proxy, and never by one that is not
    supported."""
    set_proxies(monkeypatch, http_proxy=lab.url, ALL_PROXY=SOCKS)
    monkeypatch.setenv(SOURCES, f"lab=http://lab.example token=LAB_TOKEN,helexa={helexa.url}")
    assert fetched("helexa", tmp_path).weights[0].read_bytes() == helexa.files[GGUF]
    assert lab.asked == []
    assert fetched("lab", tmp_path).weights[0].read_bytes() == lab.files[GGUF]
    assert all(path.startswith("http://lab.example/") for path, _ in lab.asked)
    monkeypatch.delenv("http_proxy")
    with pytest.raises(DownloadFailedError, match="asked: ALL_PROXY names a proxy that is not"):
        fetched("lab", tmp_path / "other")
    assert hub_identity(spec("lab")) is None


def test_an_unknown_source_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    known = "huggingface:, lab:, helexa:, path:, pypi: .* HELEXA_SOURCES"
    with pytest.raises(BadSourceError, match=f"'other:org/tiny' is not .* {known}"):
        fetched("other", tmp_path)
    with pytest.raises(BadSourceError, match="other is no source"):
        fetch_tokenizer("other:org/tiny", tmp_path, lambda _: None)
    assert parse_source("lab:org/tiny").scheme == "lab"


def test_what_names_a_source_elsewhere() -> None:
    asked = ollama_models.parse_pull(b'{"model": "lab:org/tiny"}', named_sources=hub_schemes())
    assert (asked.source, asked.model) == ("lab:org/tiny", None)
    # The original of a GGUF is asked of its own source: else anybody could put a template under
    # that name elsewhere.
    path = Path("/cache/sources/lab/models--org--tiny-GGUF/snapshots/a/x.gguf")
    assert (original_of(path, "lab"), original_of(path)) == (["lab:org/tiny"], ["org/tiny"])

"""Requests to the hub, the operator's messages when it does not answer, and headers of GGUF files
that are read by range."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from fleet.errors import HubUnavailableError, RepositoryUnknownError
from fleet.hub import file_headers
from fleet.hub.client import HubClient
from fleet.hub.offers import offers_of
from inference.loading.costs.read_costs import read_costs
from inference.loading.sources.files import ModelFiles
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError
from tests.fleet.hub.conftest import NO_HUB, OVERLOAD, SILENCE
from tests.inference.loading.fake_hub import FakeHub, serving

pytestmark = pytest.mark.usefixtures("hub")


def test_a_repository_of_ggufs_with_sizes_and_architecture() -> None:
    repository = HubClient().repository("org/tiny-gguf")
    assert repository.gguf_architecture == "llama"
    assert [offer.file for offer in offers_of(repository)] == ["Q4_K_M", "Q8_0"]
    assert [offer.num_bytes for offer in offers_of(repository)] == [4_000_000_000, 8_000_000_000]


def test_a_repository_of_ggufs_with_an_mmproj_file() -> None:
    offers = offers_of(HubClient().repository("org/images-gguf"))
    assert [offer.projector for offer in offers] == ["mmproj-F16.gguf"] * 2
    assert [offer.num_bytes for offer in offers] == [5_000_000_000, 9_000_000_000]
    assert all(offer.problem is None for offer in offers)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("org/dense", None),
        ("org/quantised", "quantised with 'awq'"),
        ("org/strange", "architecture is 'reformer'"),
        ("org/images", None),
        ("org/other-images", "preprocessor_config.json: patch_size is 14"),
        ("org/lower-case", None),
    ],
)
def test_safetensors_are_judged_by_their_config(name: str, problem: str | None) -> None:
    repository = HubClient().repository(name)
    found = repository.safetensors_problem
    assert found is None if problem is None else problem in (found or "")
    assert not repository.is_gated and repository.access_problem is None


def test_a_gated_repository_needs_a_token_and_may_run() -> None:
    repository = HubClient().repository("org/gated")
    assert repository.is_gated and repository.safetensors_problem is None
    assert "needs a token that was granted access" in (repository.access_problem or "")
    (offer,) = offers_of(repository)
    assert offer.problem is None and offer.access_problem == repository.access_problem


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("org/nothing", None, "no repository org/nothing"),
        ("org/dense", "elsewhere", "no revision 'elsewhere'"),
        ("a b", None, "is not a repository: write org/name"),
    ],
)
def test_what_is_not_there_is_reported(name: str, revision: str | None, message: str) -> None:
    with pytest.raises(RepositoryUnknownError, match=message):
        HubClient().repository(name, revision)


def test_a_hub_that_cannot_be_reached_is_reported_with_what_to_do() -> None:
    nowhere = HubClient(endpoint="http://127.0.0.1:9")
    for ask in (nowhere.repository, nowhere.search):
        with pytest.raises(HubUnavailableError, match="Models can be added by name all the same"):
            ask("org/dense")


@pytest.mark.parametrize(
    ("words", "timeout_s", "message"),
    [(SILENCE, 0.2, "cannot be reached"), (OVERLOAD, 60.0, "refused to answer: .*503")],
)
def test_a_search_waits_for_one_answer_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, words: str, timeout_s: float, message: str
) -> None:
    asked_to_wait_s: list[float] = []
    of_the_search, sleep = threading.current_thread(), time.sleep

    def note(seconds: float) -> None:
        is_of_the_search = threading.current_thread() is of_the_search
        asked_to_wait_s.append(seconds) if is_of_the_search else sleep(seconds)

    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", note)
    monkeypatch.setattr("fleet.hub.client.TIMEOUT_S", timeout_s)
    with pytest.raises(HubUnavailableError, match=message):
        HubClient().search(words)
    assert not asked_to_wait_s


def test_what_is_no_hub_is_reported() -> None:
    for ask in (HubClient().repository, HubClient().search):
        with pytest.raises(HubUnavailableError, match="is no hub"):
            ask(NO_HUB)


SPEC = LoadSpec(job_id="", model="m", source="huggingface:org/tiny")
NAME = "tiny-F32.gguf"


def divisors() -> np.ndarray:
    """Returns the divisors of Llama 3's rule for 8 frequencies and a factor of 32; zeros would be
    refused."""
    wavelengths = 2 * np.pi * 10000 ** (np.arange(8) / 8)
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    return (1 / ((1 - smooth) / 32 + smooth)).astype(np.float32)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its divisors of angles lie behind 4 MB of weights."""
    path = tmp_path_factory.mktemp("gguf") / NAME
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "embedding_length": 64,
        "feed_forward_length": 96,
        "block_count": 2,
        "context_length": 131072,
        "attention.head_count": 4,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((16384, 64), np.float32))
    writer.add_tensor("blk.1.ffn_up.weight", np.zeros((96, 64), np.float32))
    writer.add_tensor("rope_freqs.weight", divisors())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def described(hub: FakeHub, scratch: Path) -> ModelFiles:
    return HubClient(endpoint=hub.url).described("org/tiny", None, None, 10**9, scratch)


def test_a_header_is_read_in_parts_as_the_whole_file_is(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_headers, "FIRST_BYTES", 64)
    with serving(FakeHub({NAME: whole.read_bytes()})) as hub:
        files = described(hub, tmp_path)
        fetched = [wanted.removeprefix("bytes=").split("-") for _, wanted in hub.ranges]
    assert len(fetched) > 2
    assert sum(int(last) + 1 - int(first) for first, last in fetched) < 10_000
    assert fetched[0] == ["0", "63"]
    costs = read_costs(files, SPEC)
    assert costs == read_costs(ModelFiles(directory=whole.parent, weights=(whole,)), SPEC)
    assert [layer.num_weights for layer in costs.layers] == [0, 96 * 64]
    assert costs.num_head_weights == 16384 * 64


def test_a_hub_without_ranges_is_not_read_to_the_end(whole: Path, tmp_path: Path) -> None:
    with serving(FakeHub({NAME: whole.read_bytes()})) as hub:
        hub.serves_ranges = False
        assert read_costs(described(hub, tmp_path), SPEC).context_tokens == 131072


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    with serving(FakeHub({NAME: b"GIF89a" * 100})) as hub, pytest.raises(BadFileError):
        described(hub, tmp_path)

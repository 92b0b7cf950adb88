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


def test_a_repository_is_judged_by_its_config_and_access() -> None:
    for name, problem in (
        ("org/dense", None),
        ("org/quantised", "quantised with 'awq'"),
        ("org/strange", "architecture is 'reformer'"),
        ("org/images", None),
        ("org/other-images", "preprocessor_config.json: patch_size is 14"),
        ("org/lower-case", None),
        ("org/gated", None),
    ):
        repository = HubClient().repository(name)
        found = repository.safetensors_problem
        assert found is None if problem is None else problem in (found or ""), name
        assert repository.is_gated == (name == "org/gated")
        assert (
            "needs a token that was gr" in str(repository.access_problem)
        ) == repository.is_gated
    (offer,) = offers_of(repository)
    assert offer.problem is None and offer.access_problem == repository.access_problem
    assert HubClient().repository("org/tiny-gguf").gguf_architecture == "llama"
    for name, revision, message in (
        ("org/nothing", None, "no repository org/nothing"),
        ("org/dense", "elsewhere", "no revision 'elsewhere'"),
        ("a b", None, "is not a repository: write org/name"),
    ):
        with pytest.raises(RepositoryUnknownError, match=message):
            HubClient().repository(name, revision)
    for client, asked, message in (
        (
            HubClient(endpoint="http://127.0.0.1:9"),
            "org/dense",
            "can be added by name all the same",
        ),
        (HubClient(), NO_HUB, "is no hub"),
    ):
        for ask in (client.repository, client.search):
            with pytest.raises(HubUnavailableError, match=message):
                ask(asked)


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
    with serving(FakeHub({NAME: whole.read_bytes()})) as hub:
        hub.serves_ranges = False  # it is not read to the end
        assert read_costs(described(hub, tmp_path), SPEC).context_tokens == 131072
    with serving(FakeHub({NAME: b"GIF89a" * 100})) as hub, pytest.raises(BadFileError):
        described(hub, tmp_path)

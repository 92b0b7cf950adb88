"""Requests to the hub, what a repository offers and where it fits, and named sources."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from django.core.management import CommandError

from fleet.catalogue import CatalogueEntry
from fleet.catalogue.rules import check_source
from fleet.errors import (
    CatalogueValueError,
    HubUnavailableError,
    RepositoryUnknownError,
    UnknownSourceError,
)
from fleet.hub import HubRepository, fits, offers_of
from fleet.hub_client import HubClient
from fleet.live.desired_state import DesiredState, DesiredStates, KnownDevice, KnownHost
from fleet.models import CatalogueModel
from fleet.models_toml import read_document
from inference.loading.read_costs import read_costs
from inference.loading.sources.files import ModelFiles
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.fleet.conftest import offer
from tests.fleet.hub.conftest import NO_HUB, OVERLOAD, SILENCE
from tests.fleet.placement.fleets import GIB, world
from tests.inference.loading.fake_hub import FakeHub, serving
from tests.proxies import SOCKS, set_proxies


@pytest.mark.usefixtures("hub")
def test_a_repository_is_judged_by_its_config_and_access() -> None:
    for name, problem in (
        ("org/dense", None),
        ("org/quantised", "quantised with 'awq'"),
        ("org/strange", "architecture is 'reformer'"),
        ("org/gated", None),
    ):
        repository = HubClient().repository(name)
        found = repository.safetensors_problem
        assert found is None if problem is None else problem in (found or ""), name
        is_refused = "needs a token that was gr" in str(repository.access_problem)
        assert repository.is_gated == is_refused == (name == "org/gated")
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
    nowhere = HubClient(endpoint="http://127.0.0.1:9")
    for client, asked, message in (
        (nowhere, "org/dense", "can be added by name all the same"),
        (HubClient(), NO_HUB, "is no hub"),
    ):
        for ask in (client.repository, client.search):
            with pytest.raises(HubUnavailableError, match=message):
                ask(asked)


@pytest.mark.usefixtures("hub")
@each_case(
    ("words", "timeout_s", "message"),
    [(SILENCE, 0.2, "cannot be reached"), (OVERLOAD, 60.0, "refused to answer: .*503")],
)
def test_a_search_waits_for_one_answer(monkeypatch, words, timeout_s, message) -> None:
    of_the_search, sleep = threading.current_thread(), time.sleep

    def note(seconds: float) -> None:
        assert threading.current_thread() is not of_the_search, "it asks again"
        sleep(seconds)

    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", note)
    monkeypatch.setattr("fleet.hub_client.TIMEOUT_S", timeout_s)
    with pytest.raises(HubUnavailableError, match=message):
        HubClient().search(words)


SPEC = LoadSpec(job_id="", model="m", source="huggingface:org/tiny")
NAME = "tiny-F32.gguf"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its divisors of angles lie behind 4 MB of weights."""
    path = tmp_path_factory.mktemp("gguf") / NAME
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {"embedding_length": 64, "feed_forward_length": 96, "block_count": 2}
    for key, value in (sizes | {"context_length": 131072, "attention.head_count": 4}).items():
        writer.add_uint32(f"llama.{key}", value)
    # Llama 3's rule for 8 frequencies and a factor of 32; zeros would be refused.
    wavelengths = 2 * np.pi * 10000 ** (np.arange(8) / 8)
    smooth = np.clip((8192 / wavelengths - 1) / 3, 0, 1)
    divisors = (1 / ((1 - smooth) / 32 + smooth)).astype(np.float32)
    writer.add_tensor("token_embd.weight", np.zeros((16384, 64), np.float32))
    writer.add_tensor("blk.1.ffn_up.weight", np.zeros((96, 64), np.float32))
    writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def described(hub: FakeHub, scratch: Path) -> ModelFiles:
    return HubClient(endpoint=hub.url).described("org/tiny", None, None, 10**9, scratch)


def test_a_header_is_read_in_parts_as_the_whole_file_is(whole, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("fleet.hub_client.FIRST_BYTES", 64)
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


GGUF = HubRepository(
    name="org/Big-Model-GGUF",
    commit="c0ffee",
    sizes={
        "README.md": 10,
        "big-model-Q4_K_M.gguf": 4 * GIB,
        "big-model-Q8_0-00001-of-00002.gguf": 5 * GIB,
        "big-model-Q8_0-00002-of-00002.gguf": 4 * GIB,
        "mmproj-F16.gguf": GIB,
    },
    gguf_architecture="phi3",
)
DENSE = HubRepository(
    name="org/Dense",
    commit="c0ffee",
    sizes={"config.json": 1, "model.safetensors": 2 * GIB},
    safetensors_problem="quantised with 'awq'",
)


def test_each_quant_is_an_offer_by_size_with_what_speaks_against_it() -> None:
    small, large = offers_of(GGUF)
    assert (small.file, small.num_bytes, small.problem) == ("Q4_K_M", 4 * GIB, None)
    assert (large.file, large.num_bytes, len(large.names)) == ("Q8_0", 9 * GIB, 2)
    assert (small.model_name, large.model_name) == ("big-model-q4_k_m", "big-model-q8_0")
    assert (small.vram_mb, small.projector) == (4506, None), "phi3 reads text"
    assert "'rwkv'" in (offers_of(replace(GGUF, gguf_architecture="rwkv"))[1].problem or "")
    sizes = {"a/x-Q4_0.gguf": 1, "b/y-Q4_0.gguf": 2}
    first, second = offers_of(replace(GGUF, sizes=sizes))
    assert (first.file, second.file) == tuple(sizes) and first.model_name != second.model_name
    partial = replace(GGUF, sizes={"a-Q8_0-00001-of-00002.gguf": 1})
    assert "00002-of-00002" in (offers_of(partial)[0].problem or "")
    # The mmproj file is part of each, where the model reads images or may.
    sizes = {**GGUF.sizes, "mmproj-BF16.gguf": 2 * GIB}
    for architecture in ("gemma3", "qwen3vl", "llama", None):
        small, large = offers_of(replace(GGUF, sizes=sizes, gguf_architecture=architecture))
        assert small.projector == large.projector == "mmproj-BF16.gguf"
        assert small.names == ("big-model-Q4_K_M.gguf", "mmproj-BF16.gguf")
        assert (small.num_bytes, large.num_bytes) == (6 * GIB, 11 * GIB)
    (dense,) = offers_of(DENSE)
    assert (dense.file, dense.label, dense.model_name) == (None, "safetensors", "dense")
    assert dense.problem == "quantised with 'awq'"
    assert offers_of(replace(DENSE, sizes={"README.md": 1})) == ()

    # Where it fits is as placement has it.
    def away(total: int) -> DesiredState:
        card = KnownDevice(kind="cuda", total_memory_bytes=total * GIB)
        return DesiredState(host=KnownHost(devices=(card,), away_s=70.0))

    states = DesiredStates(by_neuron={"gone": away(24), "tiny": away(1), "full": away(24)})
    there = "full 2; idle 2 other,gib=22; roomy 20; small 4/4"
    snapshot = world(there, desired_states=states)
    other = CatalogueEntry(name="other", source="pypi:other", weight_bytes=22 * GIB)
    offer = offers_of(GGUF)[0]
    found = {fit.neuron: (fit.fits, fit.words) for fit in fits(offer, snapshot, {"other": other})}
    assert found == {
        "full": (False, "no room now"),
        "gone": (False, "large enough, but it has been away for 70 s"),
        "idle": (True, "fits when other leaves"),
        "roomy": (True, "fits"),
        "small": (False, "larger than any of its devices"),
        "tiny": (False, "larger than any of its devices"),
    }


pytestmark = pytest.mark.django_db(transaction=True)
SOURCES = "HELEXA_SOURCES"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The source ``lab``, which asks for a token."""
    files = {"tiny-Q4_0.gguf": b"x" * 5_000_000}
    with serving(FakeHub(files, commit="b" * 40, token="lab-secret")) as hub:
        monkeypatch.setenv("HF_TOKEN", "hf-secret")
        monkeypatch.setenv("LAB_TOKEN", "lab-secret")
        monkeypatch.setenv(SOURCES, f"lab={hub.url} token=LAB_TOKEN")
        yield hub


def test_a_source_is_listed_and_searched_with_its_token(lab, monkeypatch) -> None:
    repository = HubClient("lab").repository("org/tiny")
    (offer,) = offers_of(repository)
    assert offer.settings(repository, None)["source"] == "lab:org/tiny"
    set_proxies(monkeypatch, ALL_PROXY=SOCKS)
    assert [one.name for one in HubClient("lab").search("tiny")] == ["org/tiny"]
    assert lab.tokens == {"Bearer lab-secret"}
    monkeypatch.setenv(SOURCES, "lab=http://lab.example")  # this machine is asked directly
    for ask in (HubClient("lab").search, HubClient("lab").repository):
        with pytest.raises(HubUnavailableError, match="from here: ALL_PROXY names a proxy"):
            ask("org/tiny")
    monkeypatch.setenv(SOURCES, f"lab={lab.url} token=LAB_TOKEN")
    monkeypatch.delenv("LAB_TOKEN")
    with pytest.raises(RepositoryUnknownError, match=r"^The source lab has no repository org/tiny"):
        HubClient("lab").repository("org/tiny")
    assert lab.tokens == {"Bearer lab-secret", None}, "Hugging Face's token is nobody else's"


def test_an_unknown_source_is_refused_with_those_that_are_known(lab: FakeHub, monkeypatch) -> None:
    def sources_of(text: str) -> list[str]:
        document = read_document(text)
        assert not document.problems, document.problems
        return [model.settings.source for model in document.models]

    with pytest.raises(
        UnknownSourceError, match=r"'other' .* huggingface, lab, and HELEXA_SOURCES"
    ):
        HubClient("other")
    known = "one of huggingface:, lab:, path:, pypi:"
    for source, why in (("other:org/name", known), ("lab:name", "lab:org/name, as in lab:")):
        with pytest.raises(CatalogueValueError, match=why):
            check_source(source)
    model = offer("m", source="org/tiny")
    assert model.source == "huggingface:org/tiny", "of a bare name, where no source is the default"
    one, two = '[[models]]\nid = "org/one"\n', '[[models]]\nid = "two"\nsource = "org/two"\n'
    assert sources_of(f'{one}source = "lab"\n{two}') == ["lab:org/one", "huggingface:org/two"]
    (problem,) = read_document(f'{one}source = "other"\n').problems
    assert known in problem.message
    monkeypatch.setenv(SOURCES, f"lab={lab.url} token=LAB_TOKEN default")
    assert sources_of(one + two) == ["lab:org/one", "lab:org/two"]


def test_a_model_is_searched_and_added_by_commands(run_command, publish, lab, monkeypatch) -> None:
    publish()
    (found,) = json.loads(run_command("models", "search", "tiny", "--source", "lab", "--json"))
    assert found["name"] == "org/tiny"
    assert "tiny-q4_0 is offered" in run_command("models", "add", "lab:org/tiny")
    for words, reason in (
        ("add other:org/tiny", "there is huggingface, lab"),
        ("search tiny --source other", "there is huggingface, lab"),
        ("add m other:org/tiny", "one of huggingface:, lab:"),
        ("pull other:org/tiny", "one of huggingface:, lab:"),
    ):
        with pytest.raises(CommandError, match=reason):
            run_command("models", *words.split())
    # Bare names are of the default source.
    monkeypatch.setenv(SOURCES, f"lab={lab.url} token=LAB_TOKEN default")
    run_command("models", "add", "again", "org/tiny")
    drafting = ("--set", "draft_model=org/small", "--set", "speculation=draft_model")
    run_command("models", "change", "again", *drafting)
    found = {one.name: (one.source, one.draft_model) for one in CatalogueModel.objects.all()}
    again = ("lab:org/tiny", "lab:org/small")
    assert found == {"tiny-q4_0": ("lab:org/tiny", ""), "again": again}
    assert HubClient().repository("org/tiny").scheme == "lab"

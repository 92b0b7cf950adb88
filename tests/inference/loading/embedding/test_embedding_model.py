"""The embedding model's real files: our vectors against transformers and a pooling by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cosine_similarity
from transformers import AutoModel, AutoTokenizer

from inference.loading import loader
from inference.loading.embedding.embedding_loader import OpenedEmbeddingModel, check_embedding_fits
from inference.loading.loader import open_model
from inference.models.embedding import EmbeddingModel
from inference.protocol.load import EarlierLoads, LoadSpec
from inference.protocol.load_errors import BadSourceError, DoesNotFitError
from inference.text.tokens.tokenizer import Tokenizer
from tests.cases import each_case

TEXTS = [
    "A man is eating food.",
    "Hello",
    "Straße, naïve café — 日本語 🙂 and some code: def f(x):\n    return x",
    "The stock market crashed yesterday, and everybody was very sad about it. " * 12,
    " ",
]


def opened(directory: Path, cache: Path, **fields: Any) -> OpenedEmbeddingModel:
    spec = LoadSpec(job_id="1", model="m", source=f"path:{directory}", devices=["cpu"], **fields)
    found = open_model(spec, cache, lambda progress: None)
    assert isinstance(found, OpenedEmbeddingModel)
    return found


@pytest.fixture(scope="module")
def minilm(
    embedding_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> OpenedEmbeddingModel:
    return opened(embedding_model_dir, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def model(minilm: OpenedEmbeddingModel) -> EmbeddingModel:
    return EmbeddingModel(minilm.directory, minilm.config, minilm.device, minilm.dtype)


@pytest.fixture(scope="module")
def inputs(minilm: OpenedEmbeddingModel) -> list[torch.Tensor]:
    tokenizer = Tokenizer.load(minilm.tokenizer_dir)
    return [torch.tensor(tokenizer.encode(text, add_special_tokens=True)) for text in TEXTS]


def test_what_was_opened(minilm: OpenedEmbeddingModel) -> None:
    config = minilm.config
    assert (config.architecture, config.pooling, config.normalize) == ("bert", "mean", True)
    assert (config.hidden_size, config.vocab_size, config.max_input_tokens) == (384, 30522, 256)
    assert minilm.num_parameters == 22_713_728
    assert minilm.weight_bytes == 4 * minilm.num_parameters


def test_the_tokens_are_transformers_own(
    minilm: OpenedEmbeddingModel, inputs: list[torch.Tensor]
) -> None:
    theirs = AutoTokenizer.from_pretrained(minilm.directory)
    for text, ours in zip(TEXTS, inputs, strict=True):
        assert ours.tolist() == theirs(text, truncation=False, padding=False)["input_ids"]


@torch.inference_mode()
def test_the_vectors_are_transformers_mean(
    model: EmbeddingModel, minilm: OpenedEmbeddingModel, inputs: list[torch.Tensor]
) -> None:
    reference = AutoModel.from_pretrained(minilm.directory, dtype=torch.float32).eval()
    theirs = torch.stack([reference(ids[None]).last_hidden_state[0].mean(dim=0) for ids in inputs])
    ours = model.embed(inputs)
    assert cosine_similarity(ours, theirs, dim=-1).min() > 0.9999
    torch.testing.assert_close(ours.norm(dim=-1), torch.ones(len(inputs)))


def test_a_batch_is_what_one_by_one_is(model: EmbeddingModel, inputs: list[torch.Tensor]) -> None:
    assert len({len(ids) for ids in inputs}) > 3
    alone = torch.cat([model.embed([ids]) for ids in inputs])
    torch.testing.assert_close(model.embed(inputs), alone, rtol=0, atol=2e-6)


@each_case(("asked", "most"), [(100, 100), (1000, 256)])
def test_the_operators_clamp(
    embedding_model_dir: Path, tmp_path: Path, asked: int, most: int
) -> None:
    found = opened(embedding_model_dir, tmp_path, max_context_tokens=asked)
    assert found.config.max_input_tokens == most


@each_case(
    ("setting", "value"),
    [
        ("kv_memory_bytes", 1000),
        ("chat_template", "x"),
        ("max_output_tokens", 5),
        ("kv_dtype", "bf16"),
        ("speculation", "prompt_lookup"),
        ("quantization", "q8"),
        ("tensor_parallel", 2),
    ],
)
def test_settings_of_text_are_refused(
    embedding_model_dir: Path, tmp_path: Path, setting: str, value: object
) -> None:
    with pytest.raises(BadSourceError, match=setting):
        opened(embedding_model_dir, tmp_path, **{setting: value})


def test_what_does_not_fit_is_refused(
    minilm: OpenedEmbeddingModel,
    embedding_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_cuda = replace(minilm, device=torch.device("cuda"))
    a_lot = EarlierLoads(device_kind="cpu", memory_correction_bytes=2 * 10**9)
    with pytest.raises(DoesNotFitError, match=r"needs 2\.15 GB"):  # with a largest step
        check_embedding_fits(minilm, 2 * 10**9, a_lot)
    with pytest.raises(DoesNotFitError, match=r"needs 2\.09 GB"):  # it ran in the earlier load
        check_embedding_fits(on_cuda, 2 * 10**9, a_lot)
    nothing = EarlierLoads(device_kind="cuda", memory_correction_bytes=0)
    check_embedding_fits(on_cuda, minilm.weight_bytes, nothing)
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: 10**9)
    opened(embedding_model_dir, tmp_path)
    with pytest.raises(DoesNotFitError, match=r"1\.00 GB are free"):
        opened(embedding_model_dir, tmp_path, earlier_loads=a_lot)

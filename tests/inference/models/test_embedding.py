"""Embedding models over transformers: pooling, padding, and every architecture that is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModel

from inference.loading.hub_config import DECODERS, ENCODERS
from inference.models.config import EmbeddingConfig, Pooling
from inference.models.embedding import EmbeddingModel, pool
from inference.models.errors import MissingWeightsError
from tests.cases import each_case

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}
LENGTHS = (3, 40, 17, 1, 28)


def save(directory: Path, model_type: str) -> Path:
    torch.manual_seed(5)
    sizes = dict(SIZES)
    if model_type == "distilbert":
        sizes |= {"dim": sizes.pop("hidden_size"), "hidden_dim": sizes.pop("intermediate_size")}
    if model_type in DECODERS:
        sizes |= {"num_key_value_heads": 2, "head_dim": 8}
    AutoModel.from_config(AutoConfig.for_model(model_type, **sizes)).save_pretrained(directory)
    return directory


def load(
    directory: Path, model_type: str, pooling: Pooling, *, normalize: bool = False
) -> EmbeddingModel:
    config = EmbeddingConfig(
        architecture=model_type,
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        max_input_tokens=62,
        pad_token_id=1,
        pooling=pooling,
        normalize=normalize,
    )
    return EmbeddingModel(directory, config, torch.device("cpu"), torch.float32)


def prompts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(2, 64, (length,), generator=generator) for length in LENGTHS]


@each_case("model_type", ENCODERS + DECODERS)
def test_a_batch_of_mixed_lengths_is_what_one_by_one_is(tmp_path: Path, model_type: str) -> None:
    directory = save(tmp_path, model_type)
    pooling: Pooling = "last" if model_type in DECODERS else "mean"
    model = load(directory, model_type, pooling)
    together = model.embed(prompts())
    assert together.shape == (len(LENGTHS), 32)
    alone = torch.cat([model.embed([prompt]) for prompt in prompts()])
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-5)
    reference = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    for prompt, vector in zip(prompts(), together, strict=True):
        with torch.inference_mode():
            hidden = reference(input_ids=prompt[None]).last_hidden_state[0]
        expected = hidden[-1] if pooling == "last" else hidden.mean(dim=0)
        torch.testing.assert_close(vector, expected, rtol=0, atol=2e-5)


def test_vectors_of_length_one(tmp_path: Path) -> None:
    directory = save(tmp_path, "bert")
    plain = load(directory, "bert", "cls").embed(prompts())
    unit = load(directory, "bert", "cls", normalize=True).embed(prompts())
    torch.testing.assert_close(unit, normalize(plain, dim=-1))
    assert not torch.allclose(plain, unit)


@each_case(
    ("pooling", "expected"),
    [
        ("cls", [[1.0, -9.0], [7.0, -1.0]]),
        ("last", [[5.0, -2.0], [7.0, -1.0]]),
        ("mean", [[3.0, -4.0], [7.0, -1.0]]),
        ("max", [[5.0, -1.0], [7.0, -1.0]]),
    ],
)
def test_padding_is_in_no_pool(pooling: Pooling, expected: list[list[float]]) -> None:
    nan = float("nan")
    hidden = torch.tensor(
        [[[1.0, -9.0], [3.0, -1.0], [5.0, -2.0]], [[7.0, -1.0], [nan, nan], [99.0, 99.0]]]
    )
    is_token = torch.tensor([[True, True, True], [True, False, False]])
    assert pool(hidden, is_token, pooling).tolist() == expected


def test_missing_weights_are_named_but_for_a_pooler(tmp_path: Path) -> None:
    file = save(tmp_path, "bert") / "model.safetensors"
    tensors = load_file(file)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler.")}
    assert len(kept) < len(tensors)
    save_file(kept, file, metadata={"format": "pt"})
    assert load(tmp_path, "bert", "mean").embed(prompts()).isfinite().all()
    del kept["encoder.layer.1.output.dense.weight"]
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(MissingWeightsError, match=r"layer\.1\.output\.dense\.weight"):
        load(tmp_path, "bert", "mean")

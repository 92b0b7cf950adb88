"""Embedding models over transformers: pooling, padding, and every architecture that is listed. And
which decoder is built for which configuration, and one with a layer at a time in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModel

from inference.loading.hub_config import DECODERS, ENCODERS
from inference.models.config import EmbeddingConfig, Pooling
from inference.models.decoder import DecoderModel
from inference.models.embedding import EmbeddingModel, pool
from inference.models.errors import MissingWeightsError, UnregisteredArchitectureError
from inference.models.layer_by_layer import HEAD_ROWS, largest_layer_bytes, prompt_logits
from inference.models.registry import build_fastest_model, build_model
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.models.dense_weights import TINY, random_weights

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


def test_vectors_of_length_one_without_a_pooler_and_missing_weights(tmp_path: Path) -> None:
    file = save(tmp_path, "bert") / "model.safetensors"
    tensors = load_file(file)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("pooler.")}
    assert len(kept) < len(tensors)
    save_file(kept, file, metadata={"format": "pt"})
    assert load(tmp_path, "bert", "mean").embed(prompts()).isfinite().all()
    plain = load(tmp_path, "bert", "cls").embed(prompts())
    unit = load(tmp_path, "bert", "cls", normalize=True).embed(prompts())
    torch.testing.assert_close(unit, normalize(plain, dim=-1))
    assert not torch.allclose(plain, unit)
    del kept["encoder.layer.1.output.dense.weight"]
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(MissingWeightsError, match=r"layer\.1\.output\.dense\.weight"):
        load(tmp_path, "bert", "mean")


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(UnregisteredArchitectureError, match="no family builds 'unheard'"):
        build_model(replace(TINY, architecture="unheard"), random_weights(TINY), 64)


@each_case(
    ("dtype", "path", "reason"),
    [
        (torch.float32, "", "no C++ compiler found"),
        (torch.bfloat16, None, "bfloat16 was asked for"),
    ],
    ids=str,
)
def test_torch_runs_what_the_native_decoder_cannot_and_reports_the_reason(
    dtype: torch.dtype,
    path: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if path is not None:
        monkeypatch.setenv("PATH", path)
        monkeypatch.delenv("CXX", raising=False)
    model, execution = build_fastest_model(TINY, random_weights(TINY, dtype), 64, tmp_path)
    assert isinstance(model, DecoderModel)
    assert execution.startswith(f"torch operators: {reason}")


LLAMA = replace(
    TINY,
    vocab_size=HEAD_ROWS + 100,
    hidden_size=32,
    intermediate_size=48,
    num_layers=3,
    max_positions=64,
)


@each_case(
    "changes",
    [
        {},
        {"tie_embeddings": True},
        {"architecture": "mistral", "sliding_window": 8},
        {"architecture": "qwen3", "qk_norm": True},
    ],
    ids=str,
)
def test_one_layer_at_a_time_computes_what_the_whole_model_does(changes: dict[str, Any]) -> None:
    config = replace(LLAMA, **changes)

    def prompt(block_tokens: int) -> StepInput:
        return StepInput.of_sequence(range(0, 440, 11), block_tokens, logit_rows=slice(3, None))

    weights = random_weights(config)
    whole = build_model(config, weights, 40)
    with torch.inference_mode():
        expected = whole.forward(prompt(8), whole.new_kv(8, 8))
    done: list[int] = []
    logits = prompt_logits(config, weights, prompt(1), done.append)
    assert torch.allclose(logits, expected, atol=1e-4)
    assert done == [1, 2, 3]
    layer_weights = 32 * (16 * (2 * 4 + 2 * 2) + 3 * 48)
    assert largest_layer_bytes(replace(LLAMA, vocab_size=8), 4) == 4 * layer_weights
    assert largest_layer_bytes(LLAMA, 2) == 2 * 32 * HEAD_ROWS

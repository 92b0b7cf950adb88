"""The native decoder's formats of keys and values: what they cost, and what they never change."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from inference.models.config import ModelConfig
from inference.models.kv_format import NATIVE_FORMATS, KVFormat, kv_bytes_per_block
from inference.models.native.model import NativeModel
from inference.models.step_input import StepInput, block_table_of
from tests.cases import each_case
from tests.inference.models.dense_weights import TINY, DenseWeights, random_weights
from tests.inference.models.steps import step_of

CONFIG = replace(
    TINY,
    architecture="qwen2",
    intermediate_size=64,
    num_heads=6,
    head_dim=64,
    max_positions=256,
    tie_embeddings=True,
    qkv_bias=True,
)
BLOCK_TOKENS = 32
NUM_TOKENS = 75
LEAST_COSINE: dict[KVFormat, float] = {"fp32": 1 - 1e-6, "bf16": 0.9998, "int8": 0.998}


def weights(config: ModelConfig, key_outlier: float = 0.0) -> DenseWeights:
    """``key_outlier``: the bias of every eighth feature of a key, others' being 0."""
    made = random_weights(config)
    for name, tensor in made._tensors.items():
        if name.endswith("bias"):
            tensor.zero_()
        if name.endswith("k_proj.bias"):
            tensor[::8] = key_outlier
    return made


def build(
    library: ctypes.CDLL,
    kv_format: KVFormat,
    head_dim: int = 64,
    key_outlier: float = 0.0,
    **changes: Any,
) -> NativeModel:
    config = replace(CONFIG, head_dim=head_dim, **changes)
    return NativeModel(library, config, weights(config, key_outlier), 256, kv_format)


def token_at(position: int) -> int:
    return (position * 7 + 3) % 64


def step(*queries: tuple[int, int, list[int]]) -> StepInput:
    """(start, end, blocks) of sequences whose token ids follow from their positions."""
    given = [([*map(token_at, range(a, b))], a, blocks) for a, b, blocks in queries]
    return step_of(*given, block_tokens=BLOCK_TOKENS)


def whole(model: NativeModel) -> torch.Tensor:
    kv = model.new_kv(3, BLOCK_TOKENS)
    return model.forward(step((0, NUM_TOKENS, [0, 1, 2])), kv)


@each_case("kv_format", NATIVE_FORMATS)
@each_case("head_dim", [16, 48, 80, 128])
def test_rounding_costs_little(library: ctypes.CDLL, kv_format: KVFormat, head_dim: int) -> None:
    """And placement counts the memory that it takes."""
    model = build(library, kv_format, head_dim)
    kv = model.new_kv(3, BLOCK_TOKENS)
    num_bytes = kv.keys.nbytes + kv.values.nbytes
    assert num_bytes == 4 * kv_bytes_per_block(model.config, BLOCK_TOKENS, kv_format)
    found = cosine_similarity(whole(model), whole(build(library, "fp32", head_dim)), dim=-1)
    assert found.min() > LEAST_COSINE[kv_format]
    if kv_format == "int8" and head_dim == 48:
        # Biases of Qwen2's keys stand out: every eighth feature is ten times as large as others.
        outlying = (build(library, kind, key_outlier=10.0) for kind in ("int8", "fp32"))
        found = cosine_similarity(*map(whole, outlying), dim=-1)
        assert found.mean() > 0.999 and found.min() > 0.99


@each_case("kv_format", NATIVE_FORMATS)
@each_case("window", [None, 40])
def test_chunks_and_batch_mates_change_no_bit(
    library: ctypes.CDLL, kv_format: KVFormat, window: int | None
) -> None:
    model = build(library, kv_format, sliding_window=window)
    alone = whole(model)
    kv = model.new_kv(6, BLOCK_TOKENS)
    other = [(0, 20, [5])]
    first = model.forward(step(*other, (0, 41, [2, 0])), kv)
    second = model.forward(step((41, 74, [2, 0, 3])), kv)
    blocks = block_table_of([[5, 5, 5], [2, 0, 3]])
    rows = StepInput.of_decodes([1, token_at(74)], [20, 74], blocks, BLOCK_TOKENS)
    last = model.forward(rows, kv)
    assert torch.equal(torch.cat((first[20:], second, last[1:])), alone)


@each_case("kv_format", NATIVE_FORMATS)
@each_case("num_tokens", [1, 5, 31, 32, 33])
def test_what_is_no_number_in_a_block_before_is_left_out(
    library: ctypes.CDLL, kv_format: KVFormat, num_tokens: int
) -> None:
    """As a prompt and as a decode row, in every slot behind the sequence's last."""
    model = build(library, kv_format)
    fresh, used = model.new_kv(2, BLOCK_TOKENS), model.new_kv(2, BLOCK_TOKENS)
    used.keys.fill_(255)
    used.values.fill_(255)
    blocks = block_table_of([[0, 1]])
    row = StepInput.of_decodes([token_at(num_tokens)], [num_tokens], blocks, BLOCK_TOKENS)
    for kv in (fresh, used):
        prompt = model.forward(step((0, num_tokens, [0, 1])), kv)
        logits = torch.cat((prompt, model.forward(row, kv)))
        if kv is fresh:
            wanted = logits
    assert bool(wanted.isfinite().all())
    assert torch.equal(logits, wanted)


@each_case("kv_format", NATIVE_FORMATS)
@each_case("projection", ["k_proj", "v_proj"])
@each_case("feature", [0, 17, 63])
def test_what_is_no_number_is_seen_in_the_logits(
    library: ctypes.CDLL, kv_format: KVFormat, projection: str, feature: int
) -> None:
    """Codes would hide it."""
    made = weights(CONFIG)
    made._tensors[f"model.layers.0.self_attn.{projection}.bias"][feature] = float("nan")
    model = NativeModel(library, CONFIG, made, 256, kv_format)
    assert bool(whole(model).isnan().any(dim=1).all())

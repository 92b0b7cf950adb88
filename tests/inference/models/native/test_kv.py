"""The native decoder's formats of keys and values: what they cost, and what they never change."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cosine_similarity

from inference.models.kv_format import NATIVE_FORMATS, KVFormat, kv_bytes_per_block
from inference.models.native.model import NativeModel
from tests.cases import each_case
from tests.inference.models.dense_weights import TINY, random_weights
from tests.inference.models.steps import Sequences

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
TOKENS = [(position * 7 + 3) % 64 for position in range(75)]
LEAST_COSINE: dict[KVFormat, float] = {"fp32": 1 - 1e-6, "bf16": 0.9998, "int8": 0.998}


def build(
    library: ctypes.CDLL,
    kv_format: KVFormat,
    key_outlier: float = 0.0,
    nan: tuple[str, int] | None = None,
    **changes: Any,
) -> NativeModel:
    """``key_outlier``: the bias of every eighth feature of a key, others' being 0. ``nan``: of a
    projection in the first layer, the feature whose bias is no number."""
    config = replace(CONFIG, **changes)
    weights = random_weights(config)
    for name, tensor in weights.tensors.items():
        if name.endswith("bias"):
            tensor.zero_()
        elif tensor.ndim == 1:
            tensor.mul_(0.3)
        if name.endswith("k_proj.bias"):
            tensor[::8] = key_outlier
    if nan is not None:
        weights.tensors[f"model.layers.0.self_attn.{nan[0]}.bias"][nan[1]] = float("nan")
    return NativeModel(library, config, weights, 256, kv_format)


def whole(model: NativeModel) -> torch.Tensor:
    return Sequences(model, 1).run([(0, TOKENS)])


@each_case("kv_format", NATIVE_FORMATS)
@each_case("head_dim", [16, 48, 80, 128])
def test_rounding_costs_little(library: ctypes.CDLL, kv_format: KVFormat, head_dim: int) -> None:
    """And placement counts the memory that it takes."""
    model = build(library, kv_format, head_dim=head_dim)
    kv = model.new_kv(3, 32)
    num_bytes = kv.keys.nbytes + kv.values.nbytes
    assert num_bytes == 4 * kv_bytes_per_block(model.config, 32, kv_format)
    exact = whole(build(library, "fp32", head_dim=head_dim))
    assert cosine_similarity(whole(model), exact, dim=-1).min() > LEAST_COSINE[kv_format]
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
    rows = Sequences(model, 2)
    first = rows.run([(1, TOKENS[:20]), (0, TOKENS[:41])])[20:]
    second = rows.run([(0, TOKENS[41:74])])
    last = rows.run([(1, [1]), (0, TOKENS[74:])], num_decodes=2)[1:]
    assert torch.equal(torch.cat((first, second, last)), whole(model))


@each_case("kv_format", NATIVE_FORMATS)
@each_case("num_tokens", [1, 5, 31, 32, 33])
def test_what_is_no_number_in_a_block_before_is_left_out(
    library: ctypes.CDLL, kv_format: KVFormat, num_tokens: int
) -> None:
    """As a prompt and as a decode row, in every slot behind the sequence's last."""
    model = build(library, kv_format)
    found = []
    for filling in (0, 255):
        rows = Sequences(model, 1)
        rows.kv.keys.fill_(filling)
        rows.kv.values.fill_(filling)
        prompt, token = rows.run([(0, TOKENS[:num_tokens])]), TOKENS[num_tokens : num_tokens + 1]
        found.append(torch.cat((prompt, rows.run([(0, token)], num_decodes=1))))
    assert bool(found[0].isfinite().all())
    assert torch.equal(*found)


@each_case("kv_format", NATIVE_FORMATS)
@each_case("projection", ["k_proj", "v_proj"])
@each_case("feature", [0, 17, 63])
def test_what_is_no_number_is_seen_in_the_logits(
    library: ctypes.CDLL, kv_format: KVFormat, projection: str, feature: int
) -> None:
    """Codes would hide it."""
    model = build(library, kv_format, nan=(projection, feature))
    assert bool(whole(model).isnan().any(dim=1).all())

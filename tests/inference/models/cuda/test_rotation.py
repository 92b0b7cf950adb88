"""One kernel for the norms of heads, the rotation and the KV write, against torch's operators."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from inference.models.batch import Batch
from inference.models.cache.kv_format import KVFormat
from inference.models.cache.paged_kv import new_layer
from inference.models.cuda.rotation import triton_rotation
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.layers.rope import rope_table
from inference.models.layers.rotation import torch_rotation
from inference.models.weights.dense import DenseLinear
from tests.inference.models.cuda.tiny import CONFIG

NUM_SLOTS = 16
HALF_A_CODE = {"bf16": 2**-8, "fp16": 2**-11, "int8": 0.5 / 127, "fp8": 2**-4}
"""Relative to the largest value."""


def check(
    device: torch.device, head_dim: int, kv_format: KVFormat, dtype: torch.dtype, *, norm: bool
) -> None:
    config = replace(CONFIG, num_heads=3, num_kv_heads=1, head_dim=head_dim, qk_norm=norm)
    generator = torch.Generator().manual_seed(head_dim)
    weights = [(torch.rand(head_dim, generator=generator) + 0.5).to(device, dtype) for _ in "qk"]
    nothing = DenseLinear(torch.zeros(1, 1))
    layer = AttentionMixer(
        kind="attention",
        qkv=nothing,
        output=nothing,
        query_norm=weights[0] if norm else None,
        key_norm=weights[1] if norm else None,
    )
    positions = torch.tensor([0, 7, 90], device=device)
    slots = torch.tensor([4, 15, 9], device=device)
    batch = Batch(positions, positions, slots, slots[:, None])
    rope = rope_table(config, config.max_positions, device)
    qkv = torch.randn(3, 5 * head_dim, generator=generator).to(device, dtype)
    found = []
    for rotation in (torch_rotation, triton_rotation):
        kv = new_layer(NUM_SLOTS, 1, head_dim, kv_format, device)
        queries = rotation(config, rope, batch)(layer, qkv, kv).queries
        stored = kv.gather(torch.arange(NUM_SLOTS, device=device), 1, torch.float32)
        found.append((queries.float(), stored))
    (queries, stored), (our_queries, our_stored) = found
    step = 2e-5 if dtype == torch.float32 else 2**-5  # two of bfloat16 at 2 to 4
    assert torch.allclose(our_queries, queries, atol=step)
    # A value that lies between two codes may become either.
    step += 2 * HALF_A_CODE.get(kv_format, 0.0) * float(stored.abs().max())
    assert torch.allclose(our_stored, stored, atol=step)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("norm", [False, True])
def test_head_dims(device: torch.device, head_dim: int, norm: bool) -> None:
    check(device, head_dim, "fp32", torch.float32, norm=norm)


@pytest.mark.parametrize("kv_format", get_args(KVFormat))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_formats(device: torch.device, kv_format: KVFormat, dtype: torch.dtype) -> None:
    check(device, 80, kv_format, dtype, norm=True)

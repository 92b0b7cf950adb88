"""One kernel for the norms of heads, the rotation and the KV write, against torch's operators."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from inference.models.cache.kv_format import KVFormat
from inference.models.cache.paged_kv import new_layer
from inference.models.cuda.rotation import triton_rotation
from inference.models.device_step import DeviceStep
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.layers.linear import DenseLinear
from inference.models.layers.rope import rope_table, torch_rotation
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.models.cuda.tiny import CONFIG

pytestmark = pytest.mark.slow

NUM_SLOTS = 16
HALF_A_CODE = {"bf16": 2**-8, "fp16": 2**-11, "int8": 0.5 / 127, "fp8": 2**-4}
"""Relative to the largest value."""


def check(
    device: torch.device,
    head_dim: int,
    kv_format: KVFormat,
    dtype: torch.dtype,
    *,
    norm: bool,
    norms_rotated: bool = False,
) -> None:
    config = replace(
        CONFIG,
        num_heads=3,
        num_kv_heads=1,
        head_dim=head_dim,
        qk_norm=norm,
        is_qk_norm_after_rotation=norms_rotated,
    )
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
    table = np.tile(np.array([[4], [15], [9]], dtype=np.int32), (1, 91))
    step = DeviceStep.of(StepInput.of_decodes([0, 0, 0], [0, 7, 90], table, 1), device)
    rope = rope_table(config, config.max_positions, device)
    qkv = torch.randn(3, 5 * head_dim, generator=generator).to(device, dtype)
    found = []
    for rotation in (torch_rotation, triton_rotation):
        kv = new_layer(NUM_SLOTS, 1, head_dim, kv_format, device)
        queries = rotation(config, rope, step)(layer, qkv, kv).queries
        stored = kv.gather(torch.arange(NUM_SLOTS, device=device), 1, torch.float32)
        found.append((queries.float(), stored))
    (queries, stored), (our_queries, our_stored) = found
    error = 2e-5 if dtype == torch.float32 else 2**-5  # two of bfloat16 at 2 to 4
    assert torch.allclose(our_queries, queries, atol=error)
    # A value that lies between two codes may become either.
    error += 2 * HALF_A_CODE.get(kv_format, 0.0) * float(stored.abs().max())
    assert torch.allclose(our_stored, stored, atol=error)


@each_case("head_dim", [16, 64, 80, 128])
@each_case("norm", [False, True])
def test_head_dims(device: torch.device, head_dim: int, norm: bool) -> None:
    check(device, head_dim, "fp32", torch.float32, norm=norm)


@each_case("head_dim", [64, 80])
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_rotated_heads(device: torch.device, head_dim: int, dtype: torch.dtype) -> None:
    check(device, head_dim, "fp32", dtype, norm=True, norms_rotated=True)


@each_case("kv_format", get_args(KVFormat))
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_formats(device: torch.device, kv_format: KVFormat, dtype: torch.dtype) -> None:
    check(device, 80, kv_format, dtype, norm=True)

"""Small kernels against torch's operators: sums with their norms, gates, the rotation with norms
and KV write, and the chunk states of hybrids."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch

from inference.models.cuda.operators import TritonPointwise, triton_chunk_states, triton_rotation
from inference.models.device_step import DeviceStep
from inference.models.kv_format import KVFormat
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.layers.linear import DenseLinear
from inference.models.layers.norms import TorchPointwise
from inference.models.layers.rope import rope_table, torch_rotation
from inference.models.layers.state_rows import torch_chunk_states
from inference.models.paged_kv import new_layer
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.models.cuda.tiny import CONFIG

EPS = 1e-5
FLOAT, BFLOAT = torch.float32, torch.bfloat16
NUM_SLOTS = 16
HALF_A_CODE = {"bf16": 2**-8, "fp16": 2**-11, "int8": 0.5 / 127, "fp8": 2**-4}
"""Relative to the largest value."""


def random_rows(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


@each_case("dtype", [FLOAT, BFLOAT, torch.float16])
@each_case(("num_rows", "features"), [(1, 64), (3, 576), (2, 2048)])
def test_a_sum_and_its_norm(
    device: torch.device, dtype: torch.dtype, num_rows: int, features: int
) -> None:
    hidden, added = random_rows(device, dtype, 2 * num_rows, features).chunk(2)
    weight, before = random_rows(device, dtype, features), hidden.clone()
    wanted = TorchPointwise().add_and_norm(hidden, added, weight, EPS)
    found = TritonPointwise().add_and_norm(hidden, added, weight, EPS)
    # The interpreter cuts bfloat16 off where a card rounds to the nearest.
    step = torch.finfo(dtype).eps
    if device.type == "cuda" or dtype != BFLOAT:
        assert torch.equal(found[0], wanted[0])
    assert torch.allclose(found[0], wanted[0], rtol=step, atol=0)
    assert torch.allclose(found[1], wanted[1], rtol=3 * step, atol=3 * step)
    assert torch.equal(hidden, before)
    if dtype == FLOAT:
        alone, theirs = (
            one.add_and_norm(hidden, None, weight, EPS)
            for one in (TritonPointwise(), TorchPointwise())
        )
        assert torch.equal(alone[0], theirs[0])
        torch.testing.assert_close(alone[1], theirs[1])


@each_case("dtype", [FLOAT, BFLOAT, torch.float16])
@each_case("features", [48, 1536])
def test_a_gate(device: torch.device, dtype: torch.dtype, features: int) -> None:
    gate_up = random_rows(device, dtype, 3, 2 * features) * 4
    gate_up[0, :4] = torch.tensor([-1e4, 1e4, 0.0, float("nan")])
    tolerance = torch.finfo(dtype).eps * 2
    found, wanted = TritonPointwise().gate(gate_up), TorchPointwise().gate(gate_up)
    assert torch.allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.slow
@each_case(
    ("head_dim", "kv_format", "dtype", "norm", "norms_rotated"),
    [
        (64, "fp32", FLOAT, False, False),
        *((head_dim, "fp32", FLOAT, True, False) for head_dim in (16, 64, 128)),
        *((head_dim, "fp32", dtype, True, True) for head_dim, dtype in ((64, FLOAT), (80, BFLOAT))),
        *((80, own, dtype, True, False) for own in get_args(KVFormat) for dtype in (FLOAT, BFLOAT)),
    ],
)
def test_rotation(
    device: torch.device,
    head_dim: int,
    kv_format: KVFormat,
    dtype: torch.dtype,
    norm: bool,
    norms_rotated: bool,
) -> None:
    own = {"qk_norm": norm, "is_qk_norm_after_rotation": norms_rotated}
    config = replace(CONFIG, num_heads=3, num_kv_heads=1, head_dim=head_dim, **own)
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
        stored = kv.gather(torch.arange(NUM_SLOTS, device=device), 1, FLOAT)
        found.append((queries.float(), stored))
    (queries, stored), (our_queries, our_stored) = found
    error = 2e-5 if dtype == FLOAT else 2**-5  # two of bfloat16 at 2 to 4
    assert torch.allclose(our_queries, queries, atol=error)
    # A value that lies between two codes may become either.
    error += 2 * HALF_A_CODE.get(kv_format, 0.0) * float(stored.abs().max())
    assert torch.allclose(our_stored, stored, atol=error)


@each_case("sizes", [(1, 2, 16, 16), (5, 3, 32, 24), (4, 1, 128, 40), (2, 2, 24, 8)])
def test_chunk_states(device: torch.device, sizes: tuple[int, int, int, int]) -> None:
    chunks, heads, keys, values = sizes
    generator = torch.Generator().manual_seed(1)
    carried = torch.randn(chunks, heads, keys, keys, generator=generator) / keys**0.5
    written = torch.randn(chunks, heads, keys, values, generator=generator)
    given = [part.to(device) for part in (carried, written, written[0] * 2)]
    for found, wanted in zip(triton_chunk_states(*given), torch_chunk_states(*given), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)

"""Keys and values stored rounded: their error, and that they do not differ otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from inference.models.device_step import DeviceStep
from inference.models.kv_format import KVFormat, kv_bytes_per_block
from inference.models.layers import attention as attention_module
from inference.models.layers.attention import TorchAttention, gathered_bytes
from inference.models.paged_kv import LayerKV, PagedKV, dequantize, new_layer, quantize
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.models.dense_weights import TINY

CPU = torch.device("cpu")
BLOCK_TOKENS = 8
LARGEST_ERROR = {"fp32": 0.0, "bf16": 2**-8, "fp16": 2**-11, "int8": 0.5 / 127, "fp8": 2**-4}
"""Relative to the largest value of a group."""


@each_case("kv_format", get_args(KVFormat))
@each_case("head_dim", [16, 64, 80, 128])
def test_what_is_written_is_read(kv_format: KVFormat, head_dim: int) -> None:
    generator = torch.Generator().manual_seed(head_dim)
    keys, values = torch.randn(2, 5, 3, head_dim, generator=generator)
    layer = new_layer(4 * BLOCK_TOKENS, 3, head_dim, kv_format, CPU)
    slots = torch.tensor([9, 8, 31, 16, 12])
    layer.write(slots, keys, values)
    read = layer.gather(torch.tensor([1, 2, 3]), BLOCK_TOKENS, torch.float32)
    for found, wanted in zip(read[slots - BLOCK_TOKENS].unbind(1), (keys, values), strict=True):
        assert float((found - wanted).abs().max() / wanted.abs().max()) <= LARGEST_ERROR[kv_format]
    config = replace(TINY, num_heads=6, num_kv_heads=3, head_dim=head_dim)
    kv = PagedKV(config, 4, BLOCK_TOKENS, kv_format, CPU)
    tensors = [t for layer in kv.layers for t in (layer.entries, layer.scales) if t is not None]
    num_bytes = sum(tensor.nbytes for tensor in tensors)
    assert num_bytes == (4 + 1) * kv_bytes_per_block(config, BLOCK_TOKENS, kv_format)


@each_case("dtype", [torch.int8, torch.float8_e4m3fn])
def test_zeros_stay_zeros_and_what_is_no_number_is_seen(dtype: torch.dtype) -> None:
    values = torch.zeros(2, 96)
    values[1, 70] = float("nan")
    codes, scales = quantize(values, dtype)
    read = dequantize(codes, scales)
    assert bool((read[0] == 0).all())
    assert bool((read[1, :64] == 0).all())
    assert bool(read[1, 64:].isnan().all())


@each_case("kv_format", get_args(KVFormat))
def test_a_row_sees_the_same_as_prompt_and_as_decode(kv_format: KVFormat) -> None:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(13, 4, 16, generator=generator)
    keys, values = torch.randn(2, 13, 2, 16, generator=generator)
    layer = new_layer(3 * BLOCK_TOKENS, 2, 16, kv_format, CPU)
    table = np.array([[2, 0]], dtype=np.int32)
    slots = torch.tensor([16 + p if p < 8 else p - 8 for p in range(13)])
    layer.write(slots, keys, values)
    attention = TorchAttention(None, torch.float32)

    def attended(start: int, end: int, *, num_decodes: int) -> torch.Tensor:
        given = [0] * (end - start), [start], [end - start], table, BLOCK_TOKENS
        step = StepInput.of_queries(*given, num_decodes=num_decodes)
        rows = slice(start, end)
        attend = attention.of_step(DeviceStep.of(step, CPU))
        return attend(queries[rows], keys[rows], values[rows], layer)

    whole = attended(0, 13, num_decodes=0)
    parts = [attended(0, 7, num_decodes=0), attended(7, 13, num_decodes=0)]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-5)
    assert torch.allclose(attended(12, 13, num_decodes=1), whole[12:], atol=1e-5)
    assert torch.allclose(attended(9, 13, num_decodes=1), whole[9:], atol=1e-5)


@each_case("kv_format", ["fp32", "bf16", "int8"])
@each_case("window", [None, 11])
def test_rows_times_the_longest_context_are_never_copied_at_once(
    kv_format: KVFormat, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(2)
    num_rows, num_columns = 9, 5
    layer = new_layer((num_rows * num_columns + 1) * BLOCK_TOKENS, 2, 16, kv_format, CPU)
    keys, values = torch.randn(2, len(layer.entries), 2, 16, generator=generator)
    layer.write(torch.arange(len(layer.entries)), keys, values)
    queries = torch.randn(num_rows, 4, 16, generator=generator)
    positions = [0, 39, 7, 8, 22, 3, 31, 16, 1]
    block_ids = torch.randperm(num_rows * num_columns, generator=generator).view(num_rows, -1)
    step = StepInput.of_decodes([0] * 9, positions, block_ids.int().numpy(), BLOCK_TOKENS)
    on_device = DeviceStep.of(step, CPU)
    wanted = TorchAttention(window, torch.float32).of_step(on_device)(queries, None, None, layer)

    gathered: list[int] = []
    gather = LayerKV.gather

    def watched(self: LayerKV, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        gathered.append(len(ids) * BLOCK_TOKENS * gathered_bytes(self))
        return gather(self, ids, *rest)

    monkeypatch.setattr(LayerKV, "gather", watched)
    row_bytes = num_columns * BLOCK_TOKENS * gathered_bytes(layer)
    for most_rows in (2, 1, 0):  # a single row is copied whatever it takes
        gathered.clear()
        monkeypatch.setattr(attention_module, "MOST_GATHERED_BYTES", most_rows * row_bytes)
        attend = TorchAttention(window, torch.float32).of_step(on_device)
        assert torch.equal(attend(queries, None, None, layer), wanted)
        assert max(gathered) <= max(most_rows, 1) * row_bytes
        assert sum(gathered) == num_rows * row_bytes

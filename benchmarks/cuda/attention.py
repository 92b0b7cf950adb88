"""Paged attention by Triton beside what torch has: gathered blocks under SDPA, varlen_attn over
blocks and over a copy, FlexAttention over a copy. Copies of the blocks count, for a step would have
to make them.

    python -m benchmarks.cuda.attention
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.cuda.rows import Row, UnmeasurableError, measured, print_rows
from inference.models.cache.paged_kv import LayerKV, new_layer
from inference.models.cuda.timing import device_ms
from inference.models.device_step import DeviceStep
from inference.models.layers.attention import Attention, TorchAttention
from inference.models.step_input import StepInput

if TYPE_CHECKING:
    from inference.models.cuda.attention import Tuning

CUDA = torch.device("cuda")
BLOCK_TOKENS = 32
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
DTYPE = torch.bfloat16
DECODES = ((1, 1024), (1, 16384), (8, 4096), (32, 2048), (128, 1024))
"""(rows, context tokens)"""
PREFILLS = ((1, 4096), (8, 512))
"""(sequences, tokens of each)"""
TUNINGS = ((64, 64, 4), (64, 256, 4), (128, 512, 8))
"""(tokens of a tile, smallest part, warps) of a decode step; the first is what runs."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Sequences of one length in scattered blocks of one layer."""

    layer: LayerKV
    block_ids: torch.Tensor
    num_tokens: int

    @classmethod
    def make(cls, num_sequences: int, num_tokens: int, device: torch.device = CUDA) -> Problem:
        columns = -(-num_tokens // BLOCK_TOKENS)
        num_slots = num_sequences * columns * BLOCK_TOKENS
        layer = new_layer(num_slots, NUM_KV_HEADS, HEAD_DIM, "bf16", device)
        layer.entries.normal_()
        ids = torch.randperm(num_sequences * columns, device=device)
        return cls(layer, ids.view(num_sequences, columns), num_tokens)

    @property
    def num_sequences(self) -> int:
        return len(self.block_ids)

    @property
    def device(self) -> torch.device:
        return self.layer.entries.device

    @property
    def kv_bytes(self) -> int:
        return self.layer.entries.nbytes

    def queries(self, tokens_each: int) -> torch.Tensor:
        shape = self.num_sequences * tokens_each, NUM_HEADS, HEAD_DIM
        return torch.randn(shape, dtype=DTYPE, device=self.device)

    def copied(self) -> torch.Tensor:
        """(num_sequences, 2, kv_heads, tokens, head_dim)"""
        gathered = self.layer.gather(self.block_ids.flatten(), BLOCK_TOKENS, DTYPE)
        shape = self.num_sequences, -1, 2, NUM_KV_HEADS, HEAD_DIM
        return gathered.view(shape)[:, : self.num_tokens].permute(0, 2, 3, 1, 4)

    def copied_rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each (num_sequences * tokens, kv_heads, head_dim)."""
        keys, values = self.copied().transpose(2, 3).unbind(1)
        shape = -1, NUM_KV_HEADS, HEAD_DIM
        return keys.reshape(shape), values.reshape(shape)

    def step(self, tokens_each: int) -> DeviceStep:
        """The last tokens of each sequence: of one each, rows that decode."""
        count = self.num_sequences
        step = StepInput.of_queries(
            [0] * (count * tokens_each),
            [self.num_tokens - tokens_each] * count,
            [tokens_each] * count,
            self.block_ids.int().cpu().numpy(),
            BLOCK_TOKENS,
            num_decodes=count if tokens_each == 1 else 0,
        )
        return DeviceStep.of(step, self.device)


def rows() -> Iterator[Row]:
    for shape in DECODES:
        name = f"decode, {shape[0]} rows of {shape[1]} tokens"
        for tuning in TUNINGS:
            what = f"{name}: Triton {'/'.join(map(str, tuning))}"
            yield measured(what, partial(decode_result, shape, partial(triton_decode, tuning)))
        for label, prepare in (("SDPA", sdpa_decode), *OF_TORCH):
            yield measured(f"{name}: {label}", partial(decode_result, shape, prepare))
    for shape in PREFILLS:
        name = f"prefill, {shape[0]} of {shape[1]} tokens"
        for label, prepare in (("Triton", triton_prefill), ("SDPA", sdpa_prefill), *OF_TORCH):
            yield measured(f"{name}: {label}", partial(prefill_result, shape, prepare))


Work = Callable[[], object]


Prepare = Callable[[Problem, int], Work]
"""Prepares a problem, given how many queries each sequence has."""


def decode_result(shape: tuple[int, int], prepare: Prepare) -> str:
    problem = Problem.make(*shape)
    ms = device_ms(prepare(problem, 1))
    return f"{ms * 1e3:8.1f} us  {problem.kv_bytes / ms / 1e6:7.0f} GB/s of keys and values"


def prefill_result(shape: tuple[int, int], prepare: Prepare) -> str:
    problem = Problem.make(*shape)
    ms = device_ms(prepare(problem, problem.num_tokens))
    # Two products of which causality needs half.
    flops = 2 * problem.num_sequences * NUM_HEADS * HEAD_DIM * problem.num_tokens**2
    return f"{ms * 1e3:8.1f} us  {flops / ms / 1e9:7.0f} TFLOP/s"


def triton_decode(tuning: tuple[int, int, int], problem: Problem, queries_each: int) -> Work:
    from inference.models.cuda.attention import Tuning

    tile_tokens, part, warps = tuning
    chosen = Tuning(decode_tile_tokens=tile_tokens, decode_smallest_part=part, decode_warps=warps)
    return _decode(problem, _triton(chosen, problem.device))


TRITON_DECODE: Prepare = partial(triton_decode, TUNINGS[0])


def sdpa_decode(problem: Problem, queries_each: int) -> Work:
    return _decode(problem, TorchAttention(None, DTYPE))


def triton_prefill(problem: Problem, queries_each: int) -> Work:
    from inference.models.cuda.attention import Tuning

    return _prefill(problem, _triton(Tuning(), problem.device))


def sdpa_prefill(problem: Problem, queries_each: int) -> Work:
    return _prefill(problem, TorchAttention(None, DTYPE))


def varlen(over_blocks: bool, problem: Problem, queries_each: int) -> Work:
    from torch.nn.attention.varlen import varlen_attn

    count, num_tokens = problem.num_sequences, problem.num_tokens
    queries = problem.queries(queries_each)
    query_ends = torch.arange(count + 1, dtype=torch.int32, device="cuda") * queries_each
    context_ends = torch.arange(count + 1, dtype=torch.int32, device="cuda") * num_tokens
    used = torch.full((count,), num_tokens, dtype=torch.int32, device="cuda")
    takes = signature(varlen_attn).parameters
    groups_heads = "enable_gqa" in takes
    if over_blocks and not (groups_heads and "block_table" in takes):
        raise UnmeasurableError(
            f"varlen_attn of torch {torch.__version__} takes no blocks of grouped heads"
        )
    options: dict[str, Any] = {"is_causal": True}
    if "window_size" in takes:
        options = {"window_size": (-1, 0)}
    if groups_heads:
        options["enable_gqa"] = True
    if over_blocks:
        options |= {"seqused_k": used, "block_table": problem.block_ids.int()}

    def work() -> object:
        if over_blocks:
            entries = problem.layer.entries
            by_block = entries.view(-1, BLOCK_TOKENS, *entries.shape[1:])
            keys, values = by_block.unbind(2)
        else:
            keys, values = problem.copied_rows()
            if not groups_heads:
                keys, values = (
                    rows.repeat_interleave(NUM_HEADS // NUM_KV_HEADS, 1) for rows in (keys, values)
                )
        return varlen_attn(
            queries,
            keys,
            values,
            query_ends,
            context_ends,
            queries_each,
            num_tokens,
            **options,
        )

    return work


def flex(problem: Problem, queries_each: int) -> Work:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    first = problem.num_tokens - queries_each
    queries = problem.queries(queries_each)
    queries = queries.view(problem.num_sequences, queries_each, NUM_HEADS, HEAD_DIM).transpose(1, 2)

    def is_visible(
        batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, token: torch.Tensor
    ) -> torch.Tensor:
        return row + first >= token

    mask = create_block_mask(
        is_visible, None, None, queries_each, problem.num_tokens, device="cuda"
    )

    def work() -> object:
        keys, values = problem.copied().unbind(1)
        return compiled(queries, keys, values, block_mask=mask, enable_gqa=True)

    return work


OF_TORCH: tuple[tuple[str, Prepare], ...] = (
    ("varlen_attn over blocks", partial(varlen, True)),
    ("varlen_attn over a copy", partial(varlen, False)),
    ("FlexAttention over a copy", flex),
)


def _triton(tuning: Tuning, device: torch.device) -> Attention:
    from inference.models.cuda.attention import TritonAttention
    from inference.models.cuda.processors import processor_count

    return TritonAttention(None, processor_count(device), tuning)


def _decode(problem: Problem, attention: Attention) -> Work:
    queries = problem.queries(1)
    attend = attention.of_step(problem.step(1))
    return lambda: attend(queries, None, None, problem.layer)


def _prefill(problem: Problem, attention: Attention) -> Work:
    queries = problem.queries(problem.num_tokens)
    keys, values = problem.copied_rows()
    attend = attention.of_step(problem.step(problem.num_tokens))
    return lambda: attend(queries, keys, values, problem.layer)


def main() -> None:
    print_rows(rows())


if __name__ == "__main__":
    main()

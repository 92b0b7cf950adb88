"""Triton's paged attention against torch's operators, which other tests hold to transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from inference.models.cuda.attention import TritonAttention, Tuning, row_tiles
from inference.models.device_step import DeviceStep
from inference.models.kv_format import KVFormat
from inference.models.layers.attention import TorchAttention
from inference.models.paged_kv import DTYPE_OF, LayerKV, new_layer
from inference.models.step_input import StepInput, block_table_of
from tests.cases import each_case

pytestmark = pytest.mark.slow

TUNING = Tuning(
    decode_tile_tokens=16,
    decode_smallest_part=16,
    decode_most_parts=4,
    prefill_tile_rows=16,
    prefill_tile_tokens=16,
)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


class Case:
    """Sequences whose blocks are scattered over one layer, all computed up to their lengths."""

    def __init__(
        self,
        device: torch.device,
        lengths: list[int],
        *,
        heads: tuple[int, int] = (4, 2),
        head_dim: int = 16,
        block_tokens: int = 8,
        dtype: torch.dtype = torch.float32,
        kv_format: KVFormat = "fp32",
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.device, self.block_tokens, self.lengths = device, block_tokens, lengths
        self.num_heads, num_kv_heads = heads
        counts = [-(-length // block_tokens) for length in lengths]
        num_blocks = max(24, sum(counts))
        ids = torch.randperm(num_blocks, generator=generator).tolist()
        self.blocks = [[ids.pop() for _ in range(count)] for count in counts]
        num_slots = (num_blocks + 1) * block_tokens
        self.layer = new_layer(num_slots, num_kv_heads, head_dim, kv_format, device)
        self.written = [
            blocks[position // block_tokens] * block_tokens + position % block_tokens
            for blocks, length in zip(self.blocks, lengths, strict=True)
            for position in range(length)
        ]
        pairs = torch.randn(2, len(self.written), num_kv_heads, head_dim, generator=generator)
        self.layer.write(torch.tensor(self.written, device=device), *pairs.to(device, dtype))
        shape = sum(lengths), self.num_heads, head_dim
        self.queries = (torch.randn(shape, generator=generator) * 2).to(device, dtype)

    def step(self, starts: list[int], *, num_decodes: int = 0) -> DeviceStep:
        """Each sequence from its start on; the first ones decode."""
        lens = [length - start for start, length in zip(starts, self.lengths, strict=True)]
        given = [0] * sum(lens), starts, lens, block_table_of(self.blocks), self.block_tokens
        return DeviceStep.of(StepInput.of_queries(*given, num_decodes=num_decodes), self.device)

    def decodes(self) -> DeviceStep:
        """The last row of each sequence."""
        return self.step([length - 1 for length in self.lengths], num_decodes=len(self.lengths))

    def poison_the_rest(self) -> None:
        """What no sequence has written is not a number."""
        numbers = self.layer.entries if self.layer.scales is None else self.layer.scales
        kept = numbers[self.written].clone()
        numbers.fill_(math.nan)
        numbers[self.written] = kept


def exact(layer: LayerKV) -> LayerKV:
    """The same numbers in float32."""
    num_blocks = torch.arange(len(layer.entries), device=layer.entries.device)
    return LayerKV(layer.gather(num_blocks, 1, torch.float32).contiguous())


SINKS = torch.tensor([-2.0, 0.0, 3.0, 30.0])


def attended(
    case: Case,
    step: DeviceStep,
    tuning: Tuning = TUNING,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    **own: bool,
) -> torch.Tensor:
    attention = TritonAttention(window, 2, tuning, soft_cap, **own)
    queries = case.queries[: len(step.positions)]
    return attention.of_step(step)(queries, None, None, case.layer, sinks)


def check(case: Case, scores: dict[str, Any], *steps: DeviceStep) -> None:
    """``scores``: what a family does to them beyond multiplying queries and keys."""
    window, soft_cap = scores.get("window"), scores.get("soft_cap")
    is_chunked = scores.get("is_chunked", False)
    torchs = TorchAttention(window, torch.float32, soft_cap, is_chunked=is_chunked)
    if (sinks := scores.get("sinks")) is not None:
        scores = scores | {"sinks": (sinks := sinks.to(case.device))}
    for step in (case.decodes(), *steps):
        queries, layer = case.queries[: len(step.positions)], exact(case.layer)
        # Of a prompt from its start the reference takes the rows' own; here they are in the blocks.
        keys, values = layer.gather(step.slots, 1, torch.float32).unbind(1)
        wanted = torchs.of_step(step)(queries.float(), keys, values, layer, sinks)
        error = (attended(case, step, **scores).float() - wanted).abs().max()
        assert float(error) < TOLERANCE[queries.dtype]


@each_case(
    "scores",
    [
        {},
        {"window": 9},
        *({"window": n, "is_chunked": True} for n in (8, 13, 64)),
        {"sinks": SINKS},
        {"sinks": SINKS, "window": 9},
        {"soft_cap": 2.0},
        {"soft_cap": 2.0, "window": 9},
    ],
    ids=str,
)
def test_a_step_of_decodes_drafts_and_prompts(device: torch.device, scores: dict[str, Any]) -> None:
    """Slots that nobody wrote are not read."""
    case = Case(device, [21, 40, 19, 33])
    case.poison_the_rest()
    check(case, scores, case.step([20, 36, 0, 17], num_decodes=2), case.step([0, 1, 18, 32]))


@each_case("window", [None, 9])
def test_rows_that_see_those_behind_them(device: torch.device, window: int | None) -> None:
    case = Case(device, [21, 40, 33])
    step = case.step([20, 3, 17], num_decodes=1)
    last_seen = step.host.positions.copy()
    for first_row, start, seen in ((1, 3, range(5, 29)), (38, 17, range(17, 26))):
        rows = slice(first_row + seen.start - start, first_row + seen.stop - start)
        last_seen[rows] = seen.stop - 1
    ahead = replace(step, host=replace(step.host, last_seen=last_seen))
    check(case, {"window": window, "sees_ahead": True}, ahead, step)


@each_case(
    "given",
    [
        *({"head_dim": head_dim} for head_dim in (64, 80, 96, 128, 256)),
        *({"heads": heads} for heads in ((4, 4), (6, 2), (7, 1), (32, 1))),
        *(
            {"head_dim": 80, "dtype": dtype, "kv_format": kv_format}
            for dtype in TOLERANCE
            for kv_format in get_args(KVFormat)
            if DTYPE_OF[kv_format].itemsize >= dtype.itemsize or kv_format in ("int8", "fp8")
        ),
    ],
    ids=str,
)
def test_heads_and_formats(device: torch.device, given: dict[str, Any]) -> None:
    case = Case(device, [19, 3], **given)
    case.poison_the_rest()
    check(case, {}, case.step([17, 0]))


@settings(max_examples=20, deadline=None)
@drawn(data=st.data())
def test_shapes_at_random(device: torch.device, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=3))
    kinds: dict[str, Any] = {"heads": [(2, 2), (4, 2), (3, 1)], "head_dim": [16, 24, 72]}
    kinds |= {"block_tokens": [4, 8, 32], "kv_format": ["fp32", "int8"], "seed": range(100)}
    case = Case(device, lengths, **{k: data.draw(st.sampled_from(kinds[k])) for k in kinds})
    window, soft_cap = data.draw(st.none() | st.integers(1, 40)), st.sampled_from([None, 5.0])
    scores = {"window": window, "soft_cap": data.draw(soft_cap)}
    check(case, scores, case.step([data.draw(st.integers(0, n - 1)) for n in lengths]))


def test_a_row_is_the_same_whoever_is_beside_it(device: torch.device) -> None:
    case = Case(device, [70, 9, 33, 50, 64, 2, 16, 41])

    def decoded(tuning: Tuning = TUNING) -> torch.Tensor:
        return attended(case, case.decodes(), tuning)

    among, whole = decoded(), decoded(replace(TUNING, decode_smallest_part=256))
    assert torch.allclose(among, whole, atol=1e-6), "one part or many are the same sum"
    case.queries[1, 0, 0] = math.nan
    found = decoded().view(8, case.num_heads, -1)
    assert bool(found[1, 0].isnan().all())
    assert not bool(found[[0, *range(2, 8)]].isnan().any())
    case.lengths, case.blocks = case.lengths[:1], case.blocks[:1]
    assert torch.equal(decoded()[0], among[0])
    # Tiles cover every row once, and the deepest come first.
    tiles = row_tiles(Case(device, [37, 20]).step([0, 15]).host, 16)
    assert tiles == [(32, 5, 32, 0), (16, 16, 16, 0), (37, 5, 15, 1), (0, 16, 0, 0)]

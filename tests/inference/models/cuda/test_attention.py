"""Triton's paged attention against torch's operators, which other tests hold to transformers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
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

NUM_BLOCKS = 24
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
        ids = torch.randperm(max(NUM_BLOCKS, sum(counts)), generator=generator).tolist()
        self.blocks = [[ids.pop() for _ in range(count)] for count in counts]
        num_slots = (max(NUM_BLOCKS, sum(counts)) + 1) * block_tokens
        self.layer = new_layer(num_slots, num_kv_heads, head_dim, kv_format, device)
        slots = [slot for row in range(len(lengths)) for slot in self._slots(row)]
        pairs = torch.randn(2, len(slots), num_kv_heads, head_dim, generator=generator)
        keys, values = pairs.to(device, dtype)
        self.layer.write(torch.tensor(slots, device=device), keys, values)
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
        written = [slot for row in range(len(self.lengths)) for slot in self._slots(row)]
        numbers = self.layer.entries if self.layer.scales is None else self.layer.scales
        kept = numbers[written].clone()
        numbers.fill_(math.nan)
        numbers[written] = kept

    def _slots(self, row: int) -> list[int]:
        size, blocks = self.block_tokens, self.blocks[row]
        return [blocks[p // size] * size + p % size for p in range(self.lengths[row])]


def exact(layer: LayerKV) -> LayerKV:
    """The same numbers in float32."""
    num_blocks = torch.arange(len(layer.entries), device=layer.entries.device)
    return LayerKV(layer.gather(num_blocks, 1, torch.float32).contiguous())


@dataclass(frozen=True, slots=True)
class Scores:
    """What a family does to scores beyond multiplying queries and keys."""

    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None
    sees_ahead: bool = False
    is_chunked: bool = False

    def triton(self, tuning: Tuning) -> TritonAttention:
        return TritonAttention(
            *(self.window, 2, tuning, self.soft_cap),
            sees_ahead=self.sees_ahead,
            is_chunked=self.is_chunked,
        )

    @property
    def torch(self) -> TorchAttention:
        return TorchAttention(self.window, torch.float32, self.soft_cap, is_chunked=self.is_chunked)


PLAIN = Scores()
SINKS = torch.tensor([-2.0, 0.0, 3.0, 30.0])


def attended(case: Case, step: DeviceStep, tuning: Tuning, scores: Scores) -> torch.Tensor:
    queries = case.queries[: len(step.positions)]
    return scores.triton(tuning).of_step(step)(queries, None, None, case.layer, scores.sinks)


def check(case: Case, scores: Scores, *steps: DeviceStep) -> None:
    for step in (case.decodes(), *steps):
        queries, layer = case.queries[: len(step.positions)], exact(case.layer)
        # Of a prompt from its start the reference takes the rows' own; here they are in the blocks.
        keys, values = layer.gather(step.slots, 1, torch.float32).unbind(1)
        wanted = scores.torch.of_step(step)(queries.float(), keys, values, layer, scores.sinks)
        error = (attended(case, step, TUNING, scores).float() - wanted).abs().max()
        assert float(error) < TOLERANCE[queries.dtype]


SCORES = {
    "plain": Scores(),
    "within a window": Scores(9),
    **{f"within chunks of {n}": Scores(n, is_chunked=True) for n in (8, 13, 64)},
    "with sinks": Scores(sinks=SINKS),
    "with sinks in a window": Scores(9, sinks=SINKS),
    "capped": Scores(soft_cap=2.0),
    "capped in a window": Scores(9, soft_cap=2.0),
}


@each_case("name", SCORES)
def test_a_step_of_decodes_drafts_and_prompts(device: torch.device, name: str) -> None:
    """Slots that nobody wrote are not read."""
    scores = SCORES[name]
    if scores.sinks is not None:
        scores = replace(scores, sinks=scores.sinks.to(device))
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
    check(case, Scores(window, sees_ahead=True), ahead, step)


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
    check(case, PLAIN, case.step([17, 0]))


@settings(max_examples=20, deadline=None)
@drawn(data=st.data())
def test_shapes_at_random(data: st.DataObject) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=3))
    kinds: dict[str, Any] = {"heads": [(2, 2), (4, 2), (3, 1)], "head_dim": [16, 24, 72]}
    kinds |= {"block_tokens": [4, 8, 32], "kv_format": ["fp32", "int8"], "seed": range(100)}
    given = {name: data.draw(st.sampled_from(values)) for name, values in kinds.items()}
    case = Case(device, lengths, **given)
    window = data.draw(st.none() | st.integers(1, 40))
    scores = Scores(window, soft_cap=data.draw(st.sampled_from([None, 5.0])))
    check(case, scores, case.step([data.draw(st.integers(0, n - 1)) for n in lengths]))


def test_a_row_is_the_same_whoever_is_beside_it(device: torch.device) -> None:
    case = Case(device, [70, 9, 33, 50, 64, 2, 16, 41])

    def decoded(tuning: Tuning = TUNING) -> torch.Tensor:
        return attended(case, case.decodes(), tuning, PLAIN)

    among, whole = decoded(), decoded(replace(TUNING, decode_smallest_part=256))
    assert torch.allclose(among, whole, atol=1e-6), "one part or many are the same sum"
    case.queries[1, 0, 0] = math.nan
    found = decoded().view(8, case.num_heads, -1)
    assert bool(found[1, 0].isnan().all())
    assert not bool(found[[0, *range(2, 8)]].isnan().any())
    case.lengths, case.blocks = case.lengths[:1], case.blocks[:1]
    assert torch.equal(decoded()[0], among[0])


def test_tiles_cover_every_row_once_and_start_with_the_deepest(device: torch.device) -> None:
    case = Case(device, [37, 20])
    tiles = row_tiles(case.step([0, 15]).host, 16)
    assert tiles == [(32, 5, 32, 0), (16, 16, 16, 0), (37, 5, 15, 1), (0, 16, 0, 0)]

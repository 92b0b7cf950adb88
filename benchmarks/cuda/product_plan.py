"""Which tiles are tried for products of packed weights, which kernels are compiled beforehand, and
which of them is the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.cuda.product_weights import BITS, LAYER, Kind, Shape
from inference.models.cuda.packed_batch import ROWS as BATCH_ROWS
from inference.models.cuda.packed_batch import BatchTile, tile_rows

NUM_ROWS = (32, 16, 64, 8, 1)
"""The most important first."""
TILES = {
    "A": BatchTile(outputs=128, step_tiles=1, warps=4, stages=4),
    "B": BatchTile(outputs=64, step_tiles=1, warps=4, stages=4),
    "C": BatchTile(outputs=128, step_tiles=2, warps=4, stages=2),
    "D": BatchTile(outputs=64, step_tiles=2, warps=4, stages=3),
    "E": BatchTile(outputs=128, step_tiles=1, warps=8, stages=4),
    "F": BatchTile(outputs=256, step_tiles=1, warps=8, stages=3),
    "I": BatchTile(outputs=64, step_tiles=2, warps=4, stages=2),
}
"""The tiles tried, by the letter of their column."""
TRIED: dict[Kind, tuple[str, ...]] = {
    "q4": ("A", "B", "C", "D", "E", "F"),
    "q8": ("A", "B", "C", "D", "E", "F"),
    "q6": ("C", "D", "I"),
    "q5": ("C", "D", "I"),
}
"""Upper bits of 5- and 6-bit codes are in words for two tiles, so their steps have at least two."""
FEW_ROWS = ("A", "B", "D")
"""The tiles that are tried with so few rows that the kernel for few rows multiplies them."""
BF16, TODAY = "bf16", "today"
COMPILED_OUTPUTS = 256
COMPILED_FEATURES = 2048


def letters(kind: Kind, num_rows: int) -> tuple[str, ...]:
    """The tiles that are tried."""
    tried = TRIED[kind]
    return tried if num_rows in BATCH_ROWS else tuple(t for t in tried if t in FEW_ROWS)


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A launch that makes Triton compile one kernel, of a small weight."""

    kind: Kind
    num_rows: int
    in_features: int
    tile: BatchTile | None
    """``None``: the kernel for few rows, which is compiled for each number of features."""
    is_split: bool = False
    """Whether features are split, so that sums are float32."""


def compile_jobs(kinds: Sequence[Kind], shapes: Sequence[Shape]) -> list[CompileJob]:
    """Each kernel once, in the order in which they are measured."""
    jobs: dict[CompileJob, None] = {}
    for kind in kinds:
        for num_rows in NUM_ROWS:
            for letter, is_split in product(letters(kind, num_rows), (True, False)):
                rows, tile = tile_rows(num_rows), TILES[letter]
                jobs[CompileJob(kind, rows, COMPILED_FEATURES, tile, is_split=is_split)] = None
            few_rows = next((rows for rows in (8, 16, 32) if rows >= num_rows), 32)
            for in_features in dict.fromkeys(shape.in_features for shape in shapes):
                jobs[CompileJob(kind, few_rows, in_features, None)] = None
    return list(jobs)


@dataclass(frozen=True, slots=True)
class Reading:
    kind: Kind
    shape: Shape
    num_rows: int
    column: str
    """A letter of ``TILES``, ``BF16`` or ``TODAY``."""
    us: float
    error: float
    """The largest, relative to the largest product."""


def layer_us(
    readings: Sequence[Reading], kind: Kind, model: str, num_rows: int
) -> dict[str, float]:
    """Microseconds of a layer's four products by column, of columns that have all of them."""
    found: dict[str, dict[str, float]] = {}
    for reading in readings:
        if (reading.kind, reading.shape.model, reading.num_rows) == (kind, model, num_rows):
            found.setdefault(reading.column, {})[reading.shape.projection] = reading.us
    return {
        column: sum(us[projection] for projection in LAYER)
        for column, us in found.items()
        if set(LAYER) <= set(us)
    }


def summary(readings: Sequence[Reading], largest_error: float) -> Iterator[str]:
    """A line for each kind, model and number of rows: what a layer takes and the best tile for it;
    and a line for each column that is wrong."""
    keys = dict.fromkeys((r.kind, r.shape.model, r.num_rows) for r in readings)
    for kind, model, num_rows in keys:
        sums = layer_us(readings, kind, model, num_rows)
        tried = {column: us for column, us in sums.items() if column in TILES}
        if not tried:
            continue
        best = min(tried, key=lambda column: tried[column])
        beside = ", ".join(
            f"{column} {sums[column]:.1f}" for column in (BF16, TODAY) if column in sums
        )
        yield (
            f"best {kind} {model}, {num_rows} rows: {best} {tried[best]:.1f} us a layer "
            f"({beside}); "
            f"({BITS[kind]}, {tile_rows(num_rows)}): {TILES[best]}"
        )
    for reading in readings:
        if not reading.error <= largest_error:
            yield (
                f"WRONG {reading.kind} {reading.shape}, {reading.num_rows} rows, "
                f"{reading.column}: off by {reading.error:.2g}"
            )

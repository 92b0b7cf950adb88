"""The product of a batch with a packed weight in every format and tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from inference.models.cuda.packed_batch import BATCH_TILES, ROWS, packed_batch_kernel
from inference.models.cuda.packed_layout import pack
from inference.models.weights.stored import DenseWeight, Fp8Weight
from tests.inference.models.cuda.compilation.compiling import (
    check_speed,
    compiled_kernel,
    every_nth,
)
from tests.inference.models.cuda.random_experts import K_KINDS, TABLE_KINDS, random_expert

ARCHITECTURES = (80, 86, 89, 90, 100, 120)
KINDS = ("Q4", "Q5", "Q5 with minimums", "Q8")
IN_FEATURES = 2048
MOST_PER_WEIGHT = 14
"""Instructions of a lane: 5 to 8 as written, or 13 where 64 rows make two warps unpack the same
weights. Products without tensor cores, or scales read one by one, take 15 to 150."""
MOST_OF_SMALL_GROUPS = 17
"""With groups of 16, which have twice the scales."""
MOST_PER_WEIGHT_OF_100 = 30
"""Its tensor cores have their sums in a memory of their own, through which they come and go."""


@dataclass(frozen=True, slots=True)
class Case:
    architecture: int
    kind: str
    tile_rows: int
    is_split: bool = True

    @property
    def words(self) -> str:
        how = "split" if self.is_split else "whole"
        return f"batch, sm_{self.architecture}, {self.kind}, {self.tile_rows} rows {how}"

    def shared_bytes(self) -> int:
        weight = random_expert(self.kind, 0, IN_FEATURES)
        assert not isinstance(weight, DenseWeight | Fp8Weight)
        packed = pack(weight, torch.device("cpu"))
        layout = packed.layout
        tile = BATCH_TILES[layout["bits"], self.tile_rows]
        pointers = ["words", "high_words", "scales", "table"]
        numbers = ["num_rows", "out_features", "split_steps", "in_groups", "num_tiles"]
        types = (
            dict.fromkeys(pointers, "*i32")
            | dict.fromkeys(numbers, "i32")
            | {
                "x": "*bf16",
                "row_scales": "*fp32",
                "product": "*fp32" if self.is_split else "*bf16",
            }
        )
        constants: dict[str, Any] = {
            **layout,
            "fills_steps": layout["in_features"] == layout["padded_features"],
            "tile_outputs": tile.outputs,
            "tile_rows": self.tile_rows,
            "step_tiles": tile.step_tiles,
            "stages": tile.stages,
            "is_exact": False,
        }
        constants |= dict.fromkeys(name for name in pointers if getattr(packed, name) is None)
        compiled = compiled_kernel(
            packed_batch_kernel, self.architecture, types, constants, tile.warps
        )
        planes = 2 if layout["bits"] == 8 else 4
        weights = tile.outputs * tile.step_tiles * planes * layout["group_features"]
        most = MOST_PER_WEIGHT if layout["group_features"] == 32 else MOST_OF_SMALL_GROUPS
        if self.architecture == 100:
            most = MOST_PER_WEIGHT_OF_100
        check_speed(compiled, weights / (32 * tile.warps), most)
        return int(compiled.metadata.shared)


def all_cases(architecture: int) -> Iterator[Case]:
    for kind in (*KINDS, *K_KINDS, *TABLE_KINDS):
        for tile_rows in ROWS:
            for is_split in (False, True):
                yield Case(architecture, kind, tile_rows, is_split)


def some_cases(architecture: int, stride: int) -> Iterator[Case]:
    return every_nth(all_cases(architecture), ARCHITECTURES.index(architecture), stride)


def diagonal() -> Iterator[Case]:
    yield Case(80, "Q4", 16)
    yield Case(86, "Q6_K", 32, is_split=False)
    yield Case(90, "Q8", 64)
    yield Case(120, "IQ4_XS", 32)

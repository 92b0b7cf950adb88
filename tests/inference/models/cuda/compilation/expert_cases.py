"""The kernel for experts in every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from inference.models.cuda.experts import (
    DENSE_TILES,
    DENSE_WARPS,
    expert_matmul_kernel,
    pack_expert,
)
from inference.models.cuda.packed import TILES
from tests.inference.models.cuda.compilation.compiling import compiled_kernel, every_nth
from tests.inference.models.cuda.random_experts import K_KINDS, KINDS, TABLE_KINDS, random_expert

ARCHITECTURES = (80, 86, 89, 90, 100, 120)
IN_FEATURES = 2048


@dataclass(frozen=True, slots=True)
class Case:
    architecture: int
    kind: str
    tile_rows: int
    gathers: bool = True

    @property
    def words(self) -> str:
        how = "gathered" if self.gathers else "in order"
        return f"experts, sm_{self.architecture}, {self.kind}, {self.tile_rows} rows {how}"

    def shared_bytes(self) -> int:
        packed = pack_expert(
            random_expert(self.kind, 0, IN_FEATURES), torch.device("cpu"), torch.bfloat16
        )
        is_dense = self.kind == "dense"
        tile = (DENSE_TILES if is_dense else TILES)[self.tile_rows]
        types = {
            "x": "*bf16",
            "rows": "*i64",
            "ends": "*i32",
            "words": "*bf16" if is_dense else "*i32",
            "high_words": "*i32",
            "scales": "*i32",
            "row_scales": "*fp32",
            "table": "*i32",
            "product": "*bf16",
            "out_features": "i32",
        }
        constants: dict[str, Any] = {
            **packed.layout,
            "num_experts": 128,
            "padded_experts": 128,
            "parts": packed.parts,
            "tile_outputs": tile.outputs,
            "tile_rows": self.tile_rows,
            "stages": tile.stages,
            "is_exact": False,
        }
        optional = ("high_words", "scales", "row_scales", "table")
        absent = [name for name in optional if getattr(packed, name) is None]
        constants |= dict.fromkeys(absent if self.gathers else [*absent, "rows"])
        compiled = compiled_kernel(
            expert_matmul_kernel,
            self.architecture,
            types,
            constants,
            DENSE_WARPS if is_dense else packed.parts,
        )
        return int(compiled.metadata.shared)


def all_cases(architecture: int) -> Iterator[Case]:
    for kind in (*KINDS, *K_KINDS, *TABLE_KINDS):
        for tile_rows in DENSE_TILES if kind == "dense" else TILES:
            for gathers in (False, True):
                yield Case(architecture, kind, tile_rows, gathers)


def some_cases(architecture: int, stride: int) -> Iterator[Case]:
    return every_nth(all_cases(architecture), ARCHITECTURES.index(architecture), stride)


def diagonal() -> Iterator[Case]:
    yield Case(80, "MXFP4", 8)
    yield Case(120, "Q5_K", 32)
    yield Case(80, "dense", 64)
    yield Case(90, "fp8", 16, gathers=False)
    yield Case(86, "IQ4_XS", 8)

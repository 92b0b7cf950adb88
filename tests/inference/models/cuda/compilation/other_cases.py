"""The kernels that no matrix has: products with packed weights, DeltaNet's states, pointwise work
and drawing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import triton

from inference.models.cuda.delta import STAGES as STAGES_OF_DELTA
from inference.models.cuda.delta import TILE_VALUES, chunk_states_kernel
from inference.models.cuda.delta import WARPS as WARPS_OF_DELTA
from inference.models.cuda.drawing import BLOCK_TOKENS, STAGES, WARPS, draw_kernel, likeliest_kernel
from inference.models.cuda.matmul_kernels import packed_matmul_kernel, unpack_kernel
from inference.models.cuda.packed import TILES, UNPACKED_OUTPUTS
from inference.models.cuda.packed_layout import PARTS, step_features
from inference.models.cuda.pointwise import BLOCK_FEATURES, add_and_norm_kernel, gate_kernel
from tests.inference.models.cuda.compilation.attention_cases import ARCHITECTURES
from tests.inference.models.cuda.compilation.compiling import check_speed, compiled_kernel

LARGEST_SHARED_BYTES = 99 * 1024
"""What a block may have on any card since compute capability 8.0."""
MOST_PER_WEIGHT = 8.5
"""Instructions of a lane: 6 to 8 as written. Were layouts converted on the way, or scales and codes
read one by one, it would be 15 to 40, and memory would wait for them."""
MOST_PER_WEIGHT_OF_75 = 17
"""Its products are smaller, and nothing is fetched ahead of them."""
PACKED_TYPES = {
    **dict.fromkeys(("x", "product", "weight"), "*bf16"),
    **dict.fromkeys(("words", "high_words", "scales", "table"), "*i32"),
    **dict.fromkeys(("num_rows", "out_features"), "i32"),
    "row_scales": "*fp32",
}
PACKED_CONSTANTS = {
    "is_float": False,
    "table": None,
    "in_features": 4096,
    "padded_features": 4096,
    "parts": PARTS[0],
    "is_exact": False,
}
# bits, zero, features of a group, whether it has minimums: q4, q8, q5, q6, Q6_K and, whose codes
# lie in two places and whose tiles are the largest, Q5_K.
PACKED_FORMATS = (
    (4, 0, 32, True),
    (8, 128, 32, False),
    (6, 16, 32, False),
    (6, 32, 32, False),
    (6, 32, 16, False),
    (6, 0, 32, True),
)
# Codes in tables: groups of 32, and of 16.
TABLE_FORMATS = (4, 0, 32, False), (4, 0, 16, False)
POINTWISE_TYPES = {
    **dict.fromkeys(("hidden", "added", "weight", "summed", "normed"), "*bf16"),
    **dict.fromkeys(("gate_up", "gated"), "*bf16"),
    "eps": "fp32",
}
DRAWING_TYPES = {
    **dict.fromkeys(("scores", "floats"), "*fp32"),
    **dict.fromkeys(("integers", "token_ids"), "*i64"),
    "are_finite": "*i1",
    "row_stride": "i32",
}
DRAWING_CONSTANTS = {
    "vocab_size": 151936,
    "block": BLOCK_TOKENS,
    "padded_blocks": triton.next_power_of_2(triton.cdiv(151936, BLOCK_TOKENS)),
    "stages": STAGES,
}
CHUNK_CONSTANTS = {
    "num_heads": 32,
    "key_dim": 128,
    "value_dim": 128,
    "padded_keys": 128,
    "tile_values": TILE_VALUES,
}
"""The published models', whose heads have 128 keys and values."""


@dataclass(frozen=True, slots=True)
class Case:
    kernel: Any
    architecture: int
    types: dict[str, str]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    lane_weights: float | None = None
    """How many weights a lane's loop multiplies each time round."""

    @property
    def words(self) -> str:
        return f"{self.kernel.fn.__name__}, sm_{self.architecture}"

    def shared_bytes(self) -> int:
        compiled = compiled_kernel(
            *(self.kernel, self.architecture, self.types, self.constants),
            *(self.num_warps, self.num_stages),
        )
        if self.lane_weights is not None:
            most = MOST_PER_WEIGHT_OF_75 if self.architecture == 75 else MOST_PER_WEIGHT
            check_speed(compiled, self.lane_weights, most)
        assert compiled.metadata.shared <= LARGEST_SHARED_BYTES
        return int(compiled.metadata.shared)


def packed_case(
    architecture: int,
    tile_rows: int,
    packed_format: tuple[int, int, int, bool],
    *,
    has_table: bool = False,
) -> Case:
    bits, zero, group_features, has_minimums = packed_format
    tile = TILES[tile_rows]
    constants = PACKED_CONSTANTS | {
        "bits": bits,
        "zero": zero,
        "group_features": group_features,
        "has_minimums": has_minimums,
        "tile_rows": tile_rows,
        "tile_outputs": tile.outputs,
        "stages": tile.stages,
    }
    types = PACKED_TYPES | ({} if architecture >= 80 else {"x": "*fp16", "product": "*fp16"})
    if has_table:
        del constants["table"]
    if bits != 6:
        del types["high_words"]
        constants["high_words"] = None
    # A warp, 32 lanes, multiplies a part of a tile by a step's features each time round.
    lane_weights = tile.outputs * step_features(bits, group_features) / 32
    return Case(
        *(packed_matmul_kernel, architecture, types, constants, PARTS[0]),
        lane_weights=lane_weights,
    )


def unpacking() -> Case:
    own = {"bits": 6, "zero": 0, "group_features": 32, "has_minimums": True}
    constants = PACKED_CONSTANTS | own | {"tile_outputs": UNPACKED_OUTPUTS}
    return Case(unpack_kernel, 80, PACKED_TYPES, constants)


def all_cases() -> Iterator[Case]:
    norm_constants = {"features": 4096, "padded_features": 4096}
    yield Case(add_and_norm_kernel, 80, POINTWISE_TYPES, norm_constants)
    yield Case(gate_kernel, 80, POINTWISE_TYPES | {"features": "i32"}, {"block": BLOCK_FEATURES})
    for packed_format in PACKED_FORMATS:
        yield packed_case(90, min(TILES), packed_format)
    for architecture, table_format in product(ARCHITECTURES, TABLE_FORMATS):
        yield packed_case(architecture, min(TILES), table_format, has_table=True)
    for tile_rows in list(TILES)[1:]:
        yield packed_case(86, tile_rows, TABLE_FORMATS[0], has_table=True)
    for tile_rows in TILES:
        yield packed_case(80, tile_rows, PACKED_FORMATS[-1])
    yield unpacking()
    chunk_types = dict.fromkeys(("carried", "written", "state", "before", "after"), "*fp32")
    for architecture in ARCHITECTURES:
        yield Case(
            *(chunk_states_kernel, architecture, chunk_types | {"num_chunks": "i32"}),
            *(CHUNK_CONSTANTS, WARPS_OF_DELTA, STAGES_OF_DELTA),
        )
    for kernel, architecture in product((draw_kernel, likeliest_kernel), (80, 90)):
        yield Case(kernel, architecture, DRAWING_TYPES, DRAWING_CONSTANTS, WARPS)

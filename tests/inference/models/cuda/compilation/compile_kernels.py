"""Run as a program: compiles the kernels that ``kernel_matrix`` leaves out to machine code. Prints
one line for each: kernel, architecture, bytes of machine code, bytes of shared memory; of a product
with packed weights, how many instructions its loop spends on a weight as well."""

from __future__ import annotations

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
from tests.inference.models.cuda.compilation.compiling import compiled_kernel, in_words
from tests.inference.models.cuda.compilation.kernel_matrix import ARCHITECTURES
from tests.inference.models.cuda.compilation.machine_code import loop_instructions

PACKED_TYPES = {
    "x": "*bf16",
    "product": "*bf16",
    "weight": "*bf16",
    "words": "*i32",
    "high_words": "*i32",
    "scales": "*i32",
    "row_scales": "*fp32",
    "table": "*i32",
    "num_rows": "i32",
    "out_features": "i32",
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
    "hidden": "*bf16",
    "added": "*bf16",
    "weight": "*bf16",
    "summed": "*bf16",
    "normed": "*bf16",
    "gate_up": "*bf16",
    "gated": "*bf16",
    "features": "i32",
    "eps": "fp32",
}
NORM_CONSTANTS = {"features": 4096, "padded_features": 4096}
DRAWING_TYPES = {
    "scores": "*fp32",
    "integers": "*i64",
    "floats": "*fp32",
    "token_ids": "*i64",
    "are_finite": "*i1",
    "row_stride": "i32",
}
DRAWING_CONSTANTS = {
    "vocab_size": 151936,
    "block": BLOCK_TOKENS,
    "padded_blocks": triton.next_power_of_2(triton.cdiv(151936, BLOCK_TOKENS)),
    "stages": STAGES,
}


def compile_packed(
    architecture: int,
    tile_rows: int,
    packed_format: tuple[int, int, int, bool],
    *,
    has_table: bool = False,
) -> str:
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
    compiled = compiled_kernel(packed_matmul_kernel, architecture, types, constants, PARTS[0])
    # A warp, 32 lanes, multiplies a part of a tile by a step's features each time round.
    lane_weights = tile.outputs * step_features(bits, group_features) / 32
    per_weight = loop_instructions(compiled.asm["cubin"]) / lane_weights
    return f"{in_words(packed_matmul_kernel, architecture, compiled)} {per_weight:.1f}"


def compile_unpacking(architecture: int) -> str:
    constants = PACKED_CONSTANTS | {
        "bits": 6,
        "zero": 0,
        "group_features": 32,
        "has_minimums": True,
        "tile_outputs": UNPACKED_OUTPUTS,
    }
    return compile_kernel(unpack_kernel, architecture, PACKED_TYPES, constants)


def compile_chunk_states(architecture: int) -> str:
    """Compiles for the published models, whose heads have 128 keys and values."""
    types = dict.fromkeys(("carried", "written", "state", "before", "after"), "*fp32")
    constants = {
        "num_heads": 32,
        "key_dim": 128,
        "value_dim": 128,
        "padded_keys": 128,
        "tile_values": TILE_VALUES,
    }
    compiled = compiled_kernel(
        chunk_states_kernel,
        architecture,
        types | {"num_chunks": "i32"},
        constants,
        WARPS_OF_DELTA,
        STAGES_OF_DELTA,
    )
    return in_words(chunk_states_kernel, architecture, compiled)


def compile_kernel(
    kernel: Any,
    architecture: int,
    types: dict[str, str],
    constants: dict[str, Any],
    num_warps: int = 4,
) -> str:
    compiled = compiled_kernel(kernel, architecture, types, constants, num_warps)
    return in_words(kernel, architecture, compiled)


def main() -> None:
    norm_types = {name: kind for name, kind in POINTWISE_TYPES.items() if name != "features"}
    print(compile_kernel(add_and_norm_kernel, 80, norm_types, NORM_CONSTANTS))
    print(compile_kernel(gate_kernel, 80, POINTWISE_TYPES, {"block": BLOCK_FEATURES}))
    for packed_format in PACKED_FORMATS:
        print(compile_packed(90, min(TILES), packed_format))
    for architecture, table_format in product(ARCHITECTURES, TABLE_FORMATS):
        print(compile_packed(architecture, min(TILES), table_format, has_table=True))
    for tile_rows in list(TILES)[1:]:
        print(compile_packed(86, tile_rows, TABLE_FORMATS[0], has_table=True))
    for tile_rows in TILES:
        print(compile_packed(80, tile_rows, PACKED_FORMATS[-1]))
    print(compile_unpacking(80))
    for architecture in ARCHITECTURES:
        print(compile_chunk_states(architecture))
    for kernel, architecture in product((draw_kernel, likeliest_kernel), (80, 90)):
        print(compile_kernel(kernel, architecture, DRAWING_TYPES, DRAWING_CONSTANTS, WARPS))


if __name__ == "__main__":
    main()

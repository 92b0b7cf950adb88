"""The kernels of attention and rotation for every combination that a family can ask for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from inference.models.cache.kv_format import GROUP_FEATURES, SCALED_FORMATS, KVFormat, cuda_formats
from inference.models.cache.paged_kv import DTYPE_OF, LARGEST_CODE
from inference.models.cuda.attention import TUNINGS, Tuning, padded
from inference.models.cuda.attention_kernels import decode_kernel, prefill_kernel, reduce_kernel
from inference.models.cuda.rotation import padded_groups, rotate_kernel
from tests.inference.models.cuda.compilation.compiling import (
    SHARED_KIB,
    compiled_kernel,
    every_nth,
)

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
HEAD_DIMS = (64, 80, 96, 128, 256)
WINDOWS = (0, 4096)
CHUNK = 8192
NORMS = ((False, False), (True, False), (True, True))
"""Whether heads have a norm, and whether it is of rotated ones."""
Kernel = Literal["decode", "prefill", "reduce", "rotate"]
Scores = Literal["plain", "sinks", "soft cap", "ahead"]
"""``ahead``: prompts' rows may see those behind them."""
SCORES: tuple[Scores, ...] = ("plain", "sinks", "soft cap")
TRITON_TYPES: dict[KVFormat, str] = {
    "fp32": "*fp32",
    "bf16": "*bf16",
    "fp16": "*fp16",
    "int8": "*i8",
    "fp8": "*fp8e4nv",
}


@dataclass(frozen=True, slots=True)
class Case:
    kernel: Kernel
    architecture: int
    head_dim: int = 128
    kv_format: KVFormat = "bf16"
    window: int = 0
    scores: Scores = "plain"
    has_norm: bool = False
    norms_rotated: bool = False
    is_chunked: bool = False

    @property
    def words(self) -> str:
        parts = [self.kernel, f"sm_{self.architecture}", f"head_dim {self.head_dim}"]
        if self.kernel != "reduce":
            parts.append(f"{self.kv_format} KV")
        if self.kernel == "rotate":
            words = "norm after it" if self.norms_rotated else "norm"
            parts.append(words if self.has_norm else "no norm")
        else:
            reach = "chunks of" if self.is_chunked else "window"
            parts += [f"{reach} {self.window or 'none'}", self.scores]
        return ", ".join(parts)

    def shared_bytes(self) -> int:
        """Returns the shared memory of the first tuning that fits the card, as a load looks for it;
        else of the last."""
        for tuning in TUNINGS:
            taken = int(compiled(self, tuning).metadata.shared)
            if taken <= SHARED_KIB[self.architecture] * 1024:
                break
        return taken


def kv_formats(architecture: int) -> tuple[KVFormat, ...]:
    return cuda_formats(divmod(architecture, 10))


def all_cases(architecture: int) -> Iterator[Case]:
    formats = kv_formats(architecture)
    attention: tuple[Kernel, ...] = ("decode", "prefill")
    for kernel, *combination in product(attention, HEAD_DIMS, formats, WINDOWS, SCORES):
        # Only the reduction of a decode step has sinks.
        if kernel != "decode" or combination[-1] != "sinks":
            yield Case(kernel, architecture, *combination)
    for head_dim, window, scores in product(HEAD_DIMS, WINDOWS, ("plain", "sinks")):
        yield Case("reduce", architecture, head_dim, "bf16", window, scores)  # type: ignore[arg-type]
    for kernel, kv_format in product(attention, formats):
        yield Case(kernel, architecture, 128, kv_format, CHUNK, is_chunked=True)
    yield Case("reduce", architecture, 128, "bf16", CHUNK, is_chunked=True)
    for head_dim, kv_format, norms in product(HEAD_DIMS, formats, NORMS):
        has_norm, norms_rotated = norms
        yield Case(
            *("rotate", architecture, head_dim, kv_format),
            has_norm=has_norm,
            norms_rotated=norms_rotated,
        )


def some_cases(architecture: int, stride: int) -> Iterator[Case]:
    """One in seven of rotation, so that the seven architectures together have each combination,
    and one in ``stride`` of the others, which take longer to compile."""
    first = ARCHITECTURES.index(architecture)
    cases = list(all_cases(architecture))
    rotations = [case for case in cases if case.kernel == "rotate"]
    others = [case for case in cases if case.kernel != "rotate"]
    yield from every_nth(rotations, first, min(stride, len(ARCHITECTURES)))
    yield from every_nth(others, first, stride)


def diagonal() -> Iterator[Case]:
    """Every value of each axis, in few combinations."""
    yield Case("decode", 80, 80, "int8", 4096, "soft cap")
    yield Case("reduce", 80, 96, "bf16", 4096, "sinks")
    yield Case("rotate", 86, 96, "bf16", has_norm=True, norms_rotated=True)
    yield Case("prefill", 90, 128, "fp8", 4096)
    yield Case("rotate", 75, 64, "fp16")
    yield Case("prefill", 75, 64, "fp16", scores="sinks")
    yield Case("rotate", 80, 80, "int8")
    yield Case("decode", 90, 128, "bf16", CHUNK, is_chunked=True)
    yield Case("reduce", 90, 128, "bf16", CHUNK, is_chunked=True)
    yield Case("prefill", 90, 128, "bf16", CHUNK, is_chunked=True)
    yield Case("rotate", 86, 96, "fp32", has_norm=True)
    yield Case("decode", 86, 96, "fp32")
    yield Case("rotate", 89, 256, "fp8")
    yield Case("rotate", 100)
    yield Case("prefill", 120, 256, "bf16", 4096, "soft cap")
    yield Case("prefill", 80, 256, "bf16", 4096, "ahead")


def compiled(case: Case, tuning: Tuning) -> Any:
    activation = "*bf16" if case.architecture >= 80 else "*fp16"
    has_scales = case.kv_format in SCALED_FORMATS
    types = {
        **dict.fromkeys(("queries", "attended", "qkv"), activation),
        **dict.fromkeys(("query_norm", "key_norm", "sinks"), activation),
        **dict.fromkeys(("cosines", "sines"), "*fp32"),
        **dict.fromkeys(("positions", "slots"), "*i64"),
        **dict.fromkeys(("block_ids", "sequences"), "*i32"),
        **dict.fromkeys(("partial_sums", "partial_softmax", "scales"), "*fp32"),
        "tiles": "*i32",
        "last_seen": "*i32",
        "entries": TRITON_TYPES[case.kv_format],
        "score_scale": "fp32",
        "eps": "fp32",
        "row_blocks": "i32",
    }
    constants: dict[str, Any] = {
        "num_heads": 32,
        "num_kv_heads": 8,
        "group_heads": 4,
        "padded_heads": padded(4),
        "head_dim": case.head_dim,
        "padded_dim": padded(case.head_dim),
        "block_tokens": 32,
        "smallest_part": tuning.decode_smallest_part,
        "most_parts": tuning.decode_most_parts,
        "tile_rows": tuning.prefill_tile_rows,
        "tile_tokens": tuning.prefill_tile_tokens
        if case.kernel == "prefill"
        else tuning.decode_tile_tokens,
        "window": case.window,
        "is_chunked": case.is_chunked,
        "soft_cap": 30.0 if case.scores == "soft cap" else 0.0,
        "group_features": GROUP_FEATURES,
        "padded_groups": padded_groups(case.head_dim),
        "has_norm": case.has_norm,
        "norms_rotated": case.norms_rotated,
        "has_scales": has_scales,
        "largest_code": LARGEST_CODE.get(DTYPE_OF[case.kv_format], 1.0),
        "is_integer": case.kv_format == "int8",
        "is_exact": False,
    }
    absent = []
    if not has_scales:
        absent.append("scales")
    if not case.has_norm:
        absent += ["query_norm", "key_norm"]
    if case.scores != "sinks":
        absent.append("sinks")
    if case.scores != "ahead":
        absent.append("last_seen")
    constants |= dict.fromkeys(absent)
    kernels = {
        "decode": (decode_kernel, tuning.decode_warps),
        "prefill": (prefill_kernel, tuning.prefill_warps),
        "reduce": (reduce_kernel, 4),
        "rotate": (rotate_kernel, 1),
    }
    kernel, num_warps = kernels[case.kernel]
    return compiled_kernel(kernel, case.architecture, types, constants, num_warps, tuning.stages)

"""The native decoder's packed projections, whose reference is their own dequantised weights in
float32, GGUF's blocks packed by native code; and the library's compilation.

The whole decoder against transformers is in ``tests/inference/engine/test_parity.py``.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from benchmarks.gguf_files import random_blocks
from inference.loading.gguf import quants
from inference.models.layer_configs import ExpertsConfig
from inference.models.lazy_weights import (
    LazyWeight,
    MappedBlocks,
    RowReader,
    Rows,
    lazy,
    row_range,
    stack_lazy,
)
from inference.models.native import library as compilation
from inference.models.native.library import NativeUnavailableError, load_library
from inference.models.native.packing import (
    BLOCK_CHUNK_WEIGHTS,
    CHUNK_WEIGHTS,
    BlockType,
    Format,
    pack,
    packing,
)
from inference.models.registry import unsupported_reason
from inference.models.stored_weights import (
    TWICE_THE_MXFP4_VALUES,
    DenseWeight,
    GroupedWeight,
    StoredWeight,
    stack,
    with_tensors,
)
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.models.native.packed_decoder import (
    CONFIG,
    FORMATS,
    HIDDEN,
    TOLERANCE,
    VOCAB_SIZE,
    build,
    decoder,
    dense,
    pack_dense,
    relative_error,
    run,
)
from tests.inference.models.stored_weights import stored_as

EXACT = 1e-5
"""The same arithmetic in another order."""
NEAR = 2e-4
"""The same with some numbers rounded to bfloat16: another order moves a few to their neighbours."""
ALL = ExpertsConfig(
    num_experts=2, experts_per_token=2, intermediate_size=256, shared_intermediate_size=256
)
"""No rounding sends a row to other experts."""
TOKENS = range(VOCAB_SIZE)


def some_logits(library: ctypes.CDLL, *formats: Format, dequantized: bool = False) -> torch.Tensor:
    """Of a sparse layer and a dense one."""
    native = decoder(library, *formats, dequantized=dequantized, experts=ALL)
    return run(native, TOKENS[:20], [0] * 20)


@each_case(
    "formats",
    [*((format,) for format in FORMATS), (Format.Q4_K, Format.Q6_K, Format.Q8, Format.Q3_K)],
)
def test_quantized_equals_its_dequantized_weights(
    library: ctypes.CDLL, formats: tuple[Format, ...]
) -> None:
    expected = some_logits(library, *formats, dequantized=True)
    assert 0 < relative_error(some_logits(library, *formats), expected) < TOLERANCE


@each_case("format", [Format.Q4, Format.Q6_K, Format.T4H, None])
def test_threads_pack_the_same_bytes_in_chunks(library: ctypes.CDLL, format: Format | None) -> None:
    """Two stacked weights of several chunks, the rows of the first in another order; ``None``: of
    floats."""
    num_rows = 3 * CHUNK_WEIGHTS // 2048 + 40
    parts = [stored_as(format or Format.Q8, num_rows, 2048, seed) for seed in (1, 2)]
    if format is None:
        parts = [DenseWeight(weight=part.codes.half()) for part in parts]
    biases, order = [torch.rand(num_rows) for _ in parts], torch.randperm(num_rows)
    biased = [lazy(replace(part, bias=bias)) for part, bias in zip(parts, biases, strict=True)]
    expected = stack([with_tensors(parts[0], lambda tensor: tensor[order]), parts[1]])
    with torch.inference_mode(), packing(library, num_threads=3) as packer:
        packed = packer.pack(stack_lazy(biased).with_first(order))
    assert torch.equal(packed.bias, torch.cat([biases[0][order], biases[1]]))
    assert torch.equal(packed.panels, pack(expected, library).panels)

    def read(rows: Rows) -> StoredWeight:
        raise BadFileError("these rows are damaged")

    damaged = LazyWeight(readers=[RowReader(num_rows=64, read=read)], sample=parts[0])
    with pytest.raises(BadFileError, match="damaged"), packing(library, 2) as packer:
        packer.pack(damaged)


IQ2_XS = GGMLQuantizationType.IQ2_XS
EXTREMES = (0x0000, 0x8000, 0x0001, 0x0080, 0x83FF, 0x0400, 0x63FF, 0x7000, 0x7BFF, 0xFC00, 0x7C01)
"""The extreme values as float16: zeros, numbers below the smallest normal one, the largest,
infinity, no number."""


def any_blocks(type: BlockType, num_rows: int, num_features: int, seed: int) -> np.ndarray:
    """Random bytes, some rows of one byte, and scales at the ends of float16's range."""
    block_features, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(type)]
    shape = (num_rows, num_features // block_features, block_bytes)
    blocks = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    for row, byte in enumerate((0x00, 0xFF, 0x80, 0x7F)):
        blocks[row] = byte
    for row, half in enumerate(EXTREMES, start=4):
        for at in (0, 2, block_bytes - 4, block_bytes - 2):
            blocks[row, :, at : at + 2] = (half & 255, half >> 8)
    return blocks.reshape(num_rows, -1)


Part = tuple[int, np.ndarray, np.ndarray | None]
"""A type, rows of blocks, and the order that they are read in."""


def check_panels(library: ctypes.CDLL, *parts: Part) -> list[tuple[int, int]]:
    """Weights as ``GGUFTensorFiles`` maps them, stacked; the rows that were released."""
    released: list[tuple[int, int]] = []
    weights, wholes = [], []
    for type, rows, order in parts:

        def read(chosen: Rows, type: int = type, rows: np.ndarray = rows) -> StoredWeight:
            return quants.stored(rows[chosen], GGMLQuantizationType(type))

        blocks = MappedBlocks(
            type=int(type), rows=rows, release=lambda rows: released.append(row_range(rows))
        )
        reader = RowReader(num_rows=len(rows), read=read, order=order, blocks=blocks)
        weights.append(LazyWeight(readers=[reader], sample=reader.rows(0, 1)))
        wholes.append(read(slice(0, len(rows)) if order is None else order))
    with packing(library, num_threads=2) as packer:
        packed = packer.pack(stack_lazy(weights))
    expected = pack(stack(wholes), library)
    assert torch.equal(packed.panels, expected.panels)
    assert (packed.format, packed.codebook) == (expected.format, expected.codebook)
    return sorted(released)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numbers that are none
@each_case("type", BlockType, ids=lambda type: type.name)
def test_blocks_become_the_same_panels(library: ctypes.CDLL, type: BlockType) -> None:
    """Two stacked weights, the first in another order, whose rows do not fill the last panel; a row
    of no whole tiles where the type allows it."""
    assert GGMLQuantizationType(type).name == type.name
    block_features = GGML_QUANT_SIZES[GGMLQuantizationType(type)][0]
    num_features = 512 + (64 if block_features == 32 else block_features)
    order = np.random.default_rng(1).permutation(45)
    first = type, any_blocks(type, 45, num_features, 2), order
    second = type, any_blocks(type, 22, num_features, 3), None
    assert check_panels(library, first, second) == [(0, 22), (0, 45)]


def test_weights_of_two_types_and_of_several_chunks(library: ctypes.CDLL) -> None:
    """Q4_0 and Q4_1 have one layout. Types that native code does not read are taken apart in
    numpy."""
    generator = np.random.default_rng(4)
    small: dict[int, Part] = {
        type: (type, random_blocks(generator, GGMLQuantizationType(type), (20, 512), 0.03), None)
        for type in (BlockType.Q4_1, BlockType.Q4_0, IQ2_XS)
    }
    check_panels(library, small[BlockType.Q4_1], small[BlockType.Q4_0])
    num_rows = 2 * BLOCK_CHUNK_WEIGHTS // 8192 + 20
    large = BlockType.Q4_K, any_blocks(BlockType.Q4_K, num_rows, 8192, 4), None
    assert len(check_panels(library, large)) == 3
    assert not check_panels(library, small[IQ2_XS])


@each_case("format", [*FORMATS, None], ids=lambda format: format.name if format else "MXFP4")
def test_a_packed_table_is_read_exactly(library: ctypes.CDLL, format: Format | None) -> None:
    """Up to the one rounding that a fused multiplication leaves out; through a head of ones and
    zeros in float32. Other code paths hold the numbers of MXFP4 in eight bits."""
    if format is None:
        numbers = torch.tensor(TWICE_THE_MXFP4_VALUES, dtype=torch.int8)
        codes = numbers[torch.randint(0, 16, (VOCAB_SIZE, HIDDEN))]
        scales = torch.ldexp(torch.ones(VOCAB_SIZE, HIDDEN // 32), torch.randint(-9, -3, ()))
        table: StoredWeight = GroupedWeight(bits=8, codes=codes, scales=scales, is_mxfp4=True)
    else:
        table = stored_as(format, VOCAB_SIZE, HIDDEN, 5)
    packed, weight = pack(table, library), dense(table).weight
    if format is None:
        assert packed.format is Format.T4
        assert packed.num_bytes == -(-VOCAB_SIZE // 16) * 16 * HIDDEN * 4.5 / 8
    native = build(library, packed, pack_dense(torch.eye(HIDDEN)))
    expected = weight * torch.rsqrt(weight.square().mean(-1, keepdim=True) + 1e-5)
    actual = run(native, TOKENS, [0] * 25 + [1] * 25)
    assert torch.allclose(actual, expected, atol=1e-6)


def as_quantized(rows: torch.Tensor) -> torch.Tensor:
    """The rule of activations.h: groups with a value over four times their row's root mean square
    have 14 bits, others 8."""
    groups = rows.view(len(rows), -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    is_fine = largest**2 > 16 * rows.square().mean(-1)[:, None, None]
    scales = largest / torch.where(is_fine, 127 * 64.0, 127.0)
    return (torch.round(groups / scales) * scales).view_as(rows)


def product(rows: torch.Tensor, head: StoredWeight) -> torch.Tensor:
    """The rule of linear.h: where groups of 32 have minimums, what the middle code of each weighs
    meets the sum of the group's activations in bfloat16."""
    weight = head.dequantize()
    if head.minimums is None or head.minimums.shape[1] * 32 != HIDDEN:
        return rows @ weight.T
    middle = torch.full_like(head.codes, 2 ** (head.bits - 1))
    minimums = replace(head, codes=middle).dequantize()[:, ::32]
    sums = rows.view(len(rows), -1, 32).sum(-1)
    centred = weight - minimums.repeat_interleave(32, dim=1)
    return rows @ centred.T + sums.bfloat16().float() @ minimums.bfloat16().float().T


@each_case("format", FORMATS, ids=lambda format: format.name)
def test_groups_with_a_far_value_are_finer(library: ctypes.CDLL, format: Format) -> None:
    """And what is no number stays in its row."""
    embedding = torch.randn(VOCAB_SIZE, HIDDEN, generator=torch.Generator().manual_seed(7))
    embedding[::3, 40] *= 20
    head = stored_as(format, VOCAB_SIZE, HIDDEN, 99)
    packed = pack(head, library)
    native = build(library, pack_dense(embedding), packed)
    normal = embedding * torch.rsqrt(embedding.square().mean(-1, keepdim=True) + 1e-5)
    expected = product(as_quantized(normal), head)
    assert relative_error(expected, normal @ dense(head).weight.T) > 100 * EXACT
    for num_rows in (1, 2, 13):
        actual = run(native, TOKENS[:num_rows], [0] * num_rows)
        tolerance = NEAR if format in (Format.Q4_K, Format.Q5_K) else EXACT
        assert relative_error(actual, expected[:num_rows]) < tolerance
    embedding[3, 5], embedding[4, 40] = torch.nan, torch.inf
    damaged = run(build(library, pack_dense(embedding), packed), TOKENS[:13], [0] * 13)
    assert damaged[3:5].isnan().all()
    others = [*range(3), *range(5, 13)]
    assert torch.equal(damaged[others], actual[others])


def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again for another source or other flags."""
    if compilation.find_compiler() is None:
        pytest.skip("no C++ compiler")
    source_dir, cache_dir = tmp_path / "source", tmp_path / "cache"
    source_dir.mkdir()
    monkeypatch.setattr(compilation, "SOURCE_DIR", source_dir)
    flags, numbers = compilation.FLAGS, []
    for added, flag in ((1, "-DN=41"), (2, "-DN=41"), (2, "-DN=42")):
        monkeypatch.setattr(compilation, "FLAGS", (*flags, flag))
        source = f'extern "C" int number() {{ return N + {added}; }}'
        (source_dir / compilation.SOURCE_NAME).write_text(source)
        numbers.append(load_library(cache_dir).number())
    monkeypatch.setattr(compilation, "_compile", lambda *_: pytest.fail("compiled again"))
    assert [*numbers, load_library(cache_dir).number()] == [42, 43, 44, 44]
    assert [path.suffix for path in cache_dir.iterdir()] == [".so"] * 3


def test_what_cannot_be_compiled_or_run_is_named(
    library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "broken-c++"
    compiler.write_text("#!/bin/sh\necho unknown option >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NativeUnavailableError, match="unknown option"):
        load_library(tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX")
    with pytest.raises(NativeUnavailableError, match="no C\\+\\+ compiler"):
        load_library(tmp_path)
    assert unsupported_reason(CONFIG, library) is None
    reason = unsupported_reason(replace(CONFIG, head_dim=72), library)
    assert reason is not None and "72" in reason


@pytest.mark.slow
@each_case(("arch", "flag"), [("x86-64-v3", "avx2"), ("skylake-avx512", "avx512bw")])
def test_narrower_processors_give_the_same(
    library: ctypes.CDLL,
    native_cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    arch: str,
    flag: str,
) -> None:
    """Of AVX2, and of AVX-512 without an instruction for products of bytes."""
    cpu = Path("/proc/cpuinfo")
    if not cpu.exists() or f" {flag} " not in cpu.read_text():
        pytest.skip(f"no {flag} here")
    replaced = {"-march=native": f"-march={arch}", "-O3": "-O1"}
    flags = tuple(replaced.get(flag, flag) for flag in compilation.FLAGS)
    monkeypatch.setattr(compilation, "FLAGS", flags)
    narrow = load_library(native_cache_dir)
    generator = torch.Generator().manual_seed(7)
    embedding = pack_dense(torch.randn(VOCAB_SIZE, HIDDEN, generator=generator))
    for format in FORMATS:
        head = pack(stored_as(format, VOCAB_SIZE, HIDDEN, 99), library)
        for num_rows in (1, 2, 3, 13):
            rows = TOKENS[:num_rows], [0] * num_rows
            found, wanted = (run(build(one, embedding, head), *rows) for one in (narrow, library))
            assert relative_error(found, wanted) < NEAR, format
        error = relative_error(some_logits(narrow, format), some_logits(library, format))
        assert error < TOLERANCE, format

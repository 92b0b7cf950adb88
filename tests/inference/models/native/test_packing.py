"""The native decoder's packed projections, seen through a decoder of one layer's worth of shapes.

The whole decoder against transformers is in ``tests/inference/engine/test_parity.py``; here are the
quantised formats, whose reference is their own dequantised weights in the float32 format.
"""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inference.models.native import build
from inference.models.native.build import NativeUnavailableError, load_library
from inference.models.native.decoder import NativeDecoder
from inference.models.native.layers import NativeNorm
from inference.models.native.packer import CHUNK_WEIGHTS, packing
from inference.models.native.packing import Format, PackedLinear, pack, unwritten
from inference.models.registry import unsupported_reason
from inference.models.weights.lazy import LazyWeight, RowReader, Rows, lazy, stack_lazy
from inference.models.weights.stored import (
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
    HIDDEN,
    VOCAB_SIZE,
    decoder,
    dense,
    run,
)
from tests.inference.models.stored_weights import stored_as

TOLERANCE = 0.03
"""Relative error of the logits after two layers of evenly spread activations, nearly all of whose
groups are coarse: rounded to 2**-8 of their largest."""
EXACT = 1e-5
"""The same arithmetic in another order."""
NEAR = 2e-4
"""The same with some numbers rounded to bfloat16: another order moves a few to their neighbours."""

each_format = each_case(
    "format", [f for f in Format if f is not Format.F32], ids=lambda format: format.name
)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@each_format
def test_quantized_equals_its_dequantized_weights(library: ctypes.CDLL, format: Format) -> None:
    tokens, sequences = list(range(20)), [0] * 20
    reference = run(decoder(library, format, dequantized=True), tokens, sequences)
    actual = run(decoder(library, format, dequantized=False), tokens, sequences)
    assert 0 < relative_error(actual, reference) < TOLERANCE


def test_parts_of_a_projection_in_different_formats(library: ctypes.CDLL) -> None:
    formats = (Format.Q4_K, Format.Q6_K, Format.Q8, Format.Q3_K)
    tokens, sequences = list(range(20)), [0] * 20
    reference = run(decoder(library, *formats, dequantized=True), tokens, sequences)
    actual = run(decoder(library, *formats, dequantized=False), tokens, sequences)
    assert 0 < relative_error(actual, reference) < TOLERANCE


@each_case("format", [Format.Q4, Format.Q6_K, Format.T4H, None])
def test_threads_pack_the_same_bytes_in_chunks(library: ctypes.CDLL, format: Format | None) -> None:
    """Two stacked weights of several chunks, the rows of the first in another order; ``None``: of
    floats."""
    in_features, num_rows = 2048, 3 * CHUNK_WEIGHTS // 2048 + 40
    parts = [stored_as(format or Format.Q8, num_rows, in_features, seed) for seed in (1, 2)]
    if format is None:
        parts = [DenseWeight(weight=part.codes.half()) for part in parts]
    biases = [torch.rand(num_rows) for _ in parts]
    order = torch.randperm(num_rows)
    weight = stack_lazy(
        [lazy(replace(part, bias=bias)) for part, bias in zip(parts, biases, strict=True)]
    ).with_first(order)
    expected = stack([with_tensors(parts[0], lambda tensor: tensor[order]), parts[1]])

    with torch.inference_mode(), packing(library, num_threads=3) as packer:
        packed = packer.pack(weight)

    assert packed.bias is not None
    assert torch.equal(packed.bias, torch.cat([biases[0][order], biases[1]]))
    assert torch.equal(packed.panels, pack(expected, library).panels)


def test_what_a_thread_cannot_read_is_raised(library: ctypes.CDLL) -> None:
    def read(rows: Rows) -> StoredWeight:
        raise BadFileError("these rows are damaged")

    sample = stored_as(Format.Q8, 1, 512, 1)
    damaged = LazyWeight(readers=[RowReader(num_rows=64, read=read)], sample=sample)
    with pytest.raises(BadFileError, match="damaged"), packing(library, 2) as packer:
        packer.pack(damaged)


@each_format
@each_case("out_features", [48, 50])
def test_panels_are_as_large_as_they_report(format: Format, out_features: int) -> None:
    """``packed_bytes`` is the load report's figure; the last panel is padded."""
    stored = stored_as(format, out_features, HIDDEN, 1)
    assert not isinstance(stored, DenseWeight)
    panel_rows = -(-out_features // 16) * 16
    assert (
        unwritten(stored, out_features, None).num_bytes
        == stored.packed_bytes * panel_rows // out_features
    )


@each_format
def test_a_packed_table_is_read_exactly(library: ctypes.CDLL, format: Format) -> None:
    """Up to the one rounding that a fused multiplication leaves out; through a head of ones and
    zeros in float32."""
    table = stored_as(format, VOCAB_SIZE, HIDDEN, 5)
    identity = pack(DenseWeight(weight=torch.eye(HIDDEN)))
    native = without_layers(library, pack(table, library), identity)
    weight = dense(table).weight
    expected = weight * torch.rsqrt(weight.square().mean(-1, keepdim=True) + 1e-5)
    tokens = list(range(VOCAB_SIZE))
    assert torch.allclose(run(native, tokens, [0] * 25 + [1] * 25), expected, atol=1e-6)


def without_layers(
    library: ctypes.CDLL, embedding: PackedLinear, head: PackedLinear
) -> NativeDecoder:
    """A decoder without layers: embed, normalise, head."""
    return NativeDecoder(
        library,
        dataclasses.replace(CONFIG, num_layers=0),
        layers=[],
        final_norm=NativeNorm(torch.ones(HIDDEN)),
        embedding=embedding,
        head=head,
        kv_format="fp32",
        num_threads=2,
    )


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
    assert not isinstance(head, DenseWeight)
    weight = head.dequantize()
    if head.minimums is None or head.minimums.shape[1] * 32 != HIDDEN:
        return rows @ weight.T
    middle = torch.full_like(head.codes, 2 ** (head.bits - 1))
    minimums = dataclasses.replace(head, codes=middle).dequantize()[:, ::32]
    sums = rows.view(len(rows), -1, 32).sum(-1)
    centred = weight - minimums.repeat_interleave(32, dim=1)
    return rows @ centred.T + sums.bfloat16().float() @ minimums.bfloat16().float().T


@each_format
def test_groups_with_a_far_value_are_finer(library: ctypes.CDLL, format: Format) -> None:
    embedding = torch.randn(VOCAB_SIZE, HIDDEN, generator=torch.Generator().manual_seed(7))
    embedding[::3, 40] *= 20
    head = stored_as(format, VOCAB_SIZE, HIDDEN, 99)
    native = without_layers(library, pack(DenseWeight(weight=embedding)), pack(head, library))
    normal = embedding * torch.rsqrt(embedding.square().mean(-1, keepdim=True) + 1e-5)
    expected = product(as_quantized(normal), head)
    assert relative_error(expected, normal @ dense(head).weight.T) > 100 * EXACT
    for num_rows in (1, 2, 13):
        actual = run(native, list(range(num_rows)), [0] * num_rows)
        tolerance = NEAR if format in (Format.Q4_K, Format.Q5_K) else EXACT
        assert relative_error(actual, expected[:num_rows]) < tolerance


@each_format
def test_a_row_does_not_depend_on_its_batch_mates(library: ctypes.CDLL, format: Format) -> None:
    """Bit for bit: every row is computed by the same operations in the same order."""
    native = decoder(library, format, dequantized=False)
    mine = [3, 14, 15, 9, 2, 6, 5]
    alone = run(native, mine, [0] * 7)
    for mates in (1, 2, 3, 4, 11, 25):
        tokens = [(7 * i) % VOCAB_SIZE for i in range(mates)] + mine
        sequences = [0] * mates + [1] * 7
        assert torch.equal(run(native, tokens, sequences)[mates:], alone)


def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if build.find_compiler() is None:
        pytest.skip("no C++ compiler")
    source_dir, cache_dir = tmp_path / "source", tmp_path / "cache"
    source_dir.mkdir()
    (source_dir / build.SOURCE_NAME).write_text('extern "C" int forty_two() { return 42; }')
    monkeypatch.setattr(build, "SOURCE_DIR", source_dir)
    assert load_library(cache_dir).forty_two() == 42
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert load_library(cache_dir).forty_two() == 42
    assert [path.suffix for path in cache_dir.iterdir()] == [".so"]


def test_no_compiler_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(NativeUnavailableError, match="no C\\+\\+ compiler"):
        load_library(tmp_path)


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken-c++"
    compiler.write_text("#!/bin/sh\necho unknown option >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(NativeUnavailableError, match="unknown option"):
        load_library(tmp_path / "cache")


def test_shapes_the_decoder_cannot_run_are_named(library: ctypes.CDLL) -> None:
    assert unsupported_reason(CONFIG, library) is None
    reason = unsupported_reason(dataclasses.replace(CONFIG, head_dim=72), library)
    assert reason is not None and "72" in reason


@each_format
def test_what_is_no_number_stays_in_its_row(library: ctypes.CDLL, format: Format) -> None:
    embedding = torch.randn(VOCAB_SIZE, HIDDEN, generator=torch.Generator().manual_seed(7))
    embedding[3, 5] = torch.nan
    embedding[4, 40] = torch.inf
    head = pack(stored_as(format, VOCAB_SIZE, HIDDEN, 99), library)
    native = without_layers(library, pack(DenseWeight(weight=embedding)), head)
    tokens = list(range(12))
    logits = run(native, tokens, [0] * len(tokens))
    assert [int(token) for token in logits.isnan().all(-1).nonzero()] == [3, 4]
    assert logits[[*range(3), *range(5, 12)]].isfinite().all()


@pytest.fixture(scope="module", params=["x86-64-v3", "skylake-avx512"])
def narrower_library(request: pytest.FixtureRequest, native_cache_dir: Path) -> ctypes.CDLL:
    """Returns the library as it is compiled on processors with AVX2, and with AVX-512 but without
    an instruction for products of bytes."""
    flag = {"x86-64-v3": " avx2 ", "skylake-avx512": " avx512bw "}[request.param]
    cpu = Path("/proc/cpuinfo")
    if build.find_compiler() is None or not cpu.exists() or flag not in cpu.read_text():
        pytest.skip(f"no compiler, or no{flag}here")
    replaced = {"-march=native": f"-march={request.param}", "-O3": "-O1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", tuple(replaced.get(f, f) for f in build.FLAGS))
        return load_library(native_cache_dir)


@pytest.mark.slow
@each_format
def test_narrower_processors_give_the_same(
    library: ctypes.CDLL, narrower_library: ctypes.CDLL, format: Format
) -> None:
    generator = torch.Generator().manual_seed(7)
    embedding = pack(DenseWeight(weight=torch.randn(VOCAB_SIZE, HIDDEN, generator=generator)))
    head = pack(stored_as(format, VOCAB_SIZE, HIDDEN, 99), library)
    for num_rows in (1, 2, 3, 13):
        wide, narrow = (
            run(without_layers(each, embedding, head), list(range(num_rows)), [0] * num_rows)
            for each in (library, narrower_library)
        )
        assert relative_error(narrow, wide) < NEAR
    tokens, sequences = list(range(20)), [0] * 20
    wide, narrow = (
        run(decoder(each, format, dequantized=False), tokens, sequences)
        for each in (library, narrower_library)
    )
    assert relative_error(narrow, wide) < TOLERANCE


def test_mxfp4_is_packed_in_four_bits(library: ctypes.CDLL) -> None:
    """A table of it is read exactly, though other code paths hold its numbers in eight bits."""
    numbers = torch.tensor(TWICE_THE_MXFP4_VALUES, dtype=torch.int8)
    codes = numbers[torch.randint(0, 16, (VOCAB_SIZE, HIDDEN))]
    scales = torch.ldexp(torch.ones(VOCAB_SIZE, HIDDEN // 32), torch.randint(-9, -3, ()))
    table = GroupedWeight(bits=8, codes=codes, scales=scales, is_mxfp4=True)
    packed = pack(table, library)
    assert packed.format is Format.T4
    assert packed.num_bytes == -(-VOCAB_SIZE // 16) * 16 * HIDDEN * 4.5 / 8
    weight = table.dequantize()
    expected = weight * torch.rsqrt(weight.square().mean(-1, keepdim=True) + 1e-5)
    native = without_layers(library, packed, pack(DenseWeight(weight=torch.eye(HIDDEN))))
    tokens = list(range(VOCAB_SIZE))
    assert torch.allclose(run(native, tokens, [0] * 25 + [1] * 25), expected, atol=1e-6)

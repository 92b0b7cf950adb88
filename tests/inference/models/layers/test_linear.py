"""Quantised projections against their dequantised weights, and rows against themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from inference.models.layers.kernels import (
    LARGEST_FP8,
    fp8_rows,
    has_fp8,
    int4_kernel_reason,
    int8_matmul,
    pack_int4,
)
from inference.models.layers.linear import (
    DenseLinear,
    Fp8Linear,
    LinearFactory,
    QuantizedLinear,
    StackedLinear,
)
from inference.models.native.packing import Format
from inference.models.stored_weights import DenseWeight, GroupedWeight, StoredWeight
from tests.cases import each_case
from tests.inference.models.stored_weights import stored_as

CPU = torch.device("cpu")
RELATIVE_TOLERANCE = 0.01
"""The tolerance relative to the output's root mean square: the kernels read activations and scales
as bfloat16, whose steps are 1/256 of a value, and round their result to it."""

DEVICES = [
    pytest.param("cpu", id="cpu"),
    pytest.param(
        "cuda",
        id="cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]

requires_int4 = pytest.mark.skipif(
    not torch.cpu._is_avx2_supported(), reason="the 4-bit CPU kernel needs AVX2"
)


FORMATS = {4: Format.Q4, 5: Format.Q5_0, 6: Format.Q6, 8: Format.Q8}


def grouped(
    bits: int, out_features: int, in_features: int, *, bias: bool = False, seed: int = 0
) -> GroupedWeight:
    stored = stored_as(FORMATS[bits], out_features, in_features, seed)
    generator = torch.Generator().manual_seed(seed)
    return replace(stored, bias=torch.randn(out_features, generator=generator) if bias else None)


def expected(stored: StoredWeight, x: torch.Tensor) -> torch.Tensor:
    weight = stored.weight if isinstance(stored, DenseWeight) else stored.dequantize()
    product = x.double() @ weight.double().T
    return product if stored.bias is None else product + stored.bias.double()


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    wanted = wanted.to(found.device)
    error = (found.double() - wanted).pow(2).mean().sqrt()
    assert error < RELATIVE_TOLERANCE * wanted.pow(2).mean().sqrt()


@requires_int4
@pytest.mark.parametrize("device", DEVICES)
@each_case("bits", [4, 5, 6, 8])
@each_case("bias", [False, True])
@each_case("shape", [(48, 64), (192, 576), (64, 1536)])
@each_case("num_rows", [1, 3, 32, 100])
def test_both_phases_match_the_dequantised_weight(
    device: str, bits: int, bias: bool, shape: tuple[int, int], num_rows: int
) -> None:
    stored = grouped(bits, *shape, bias=bias)
    place = torch.device(device)
    for copies in (True, False):
        factory = LinearFactory(place, torch.float32, prefill_copies=copies)
        factory.packed_trials = None  # torch's kernels, also where Triton's are faster
        linear, outcome = factory.linear(stored)
        assert isinstance(linear, QuantizedLinear)
        assert outcome.startswith(f"{4 if bits == 4 else 8}-bit kernel")
        assert (linear.out_features, linear.in_features) == shape
        x = torch.randn(num_rows, shape[1])
        for phase in (linear.decode, linear.prefill):
            found = phase(x.to(place))
            assert found.dtype == torch.float32 and found.shape == (num_rows, shape[0])
            assert_close(found, expected(stored, x))


@requires_int4
@each_case("bits", [4, 8])
def test_a_row_alone_equals_the_row_in_a_batch(bits: int) -> None:
    """And eight bits are exact as two digits."""
    linear, _ = LinearFactory(CPU, torch.float32).linear(grouped(bits, 960, 576))
    x = torch.randn(32, 576)
    x[7] *= 1000.0  # a loud neighbour must not change anybody's scale
    alone = torch.cat([linear.decode(row) for row in x.split(1)])
    assert torch.equal(linear.decode(x), alone)
    assert torch.equal(linear.decode(x[5:11]), alone[5:11])
    prompt = torch.cat([linear.prefill(row) for row in x.split(1)])
    assert torch.allclose(linear.prefill(x), prompt, rtol=0.02, atol=0.02)
    codes = torch.arange(-128, 128, dtype=torch.int8).repeat(16, 1)
    stored = GroupedWeight(bits=8, codes=codes, scales=torch.full((16, 8), 0.25))
    packed, scales_and_zeros = pack_int4(stored, CPU)
    found = int8_matmul(torch.eye(256), packed, scales_and_zeros)
    assert torch.equal(found.T, codes * 0.25)


@each_case(
    ("out_features", "exact", "outcome"),
    [(50, False, "dequantised: "), (48, True, "dequantised: float32 products were asked for")],
    ids=["an awkward shape", "exact products"],
)
def test_what_is_dequantised_is_reported(out_features: int, exact: bool, outcome: str) -> None:
    stored, x = grouped(4, out_features, 64, bias=True), torch.randn(4, 64)
    linear, found = LinearFactory(CPU, torch.float32, exact=exact).linear(stored)
    assert isinstance(linear, DenseLinear) and found.startswith(outcome)
    assert torch.allclose(linear.decode(x).double(), expected(stored, x), atol=1e-5)
    assert "meta" in (int4_kernel_reason(grouped(4, 48, 64), torch.device("meta")) or "")


@each_case("stored_dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("dtype", [torch.float32, torch.bfloat16])
def test_dense_weights_answer_in_the_activation_dtype(
    stored_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    weight = torch.randn(24, 32).to(stored_dtype)
    stored = DenseWeight(weight=weight, bias=torch.randn(24).to(stored_dtype))
    x = torch.randn(5, 32).to(dtype)
    linear, _ = LinearFactory(CPU, dtype).linear(stored)
    assert linear.decode(x).dtype == dtype
    assert_close(linear.decode(x), expected(stored, x))
    assert torch.equal(linear.prefill(x), linear.decode(x))
    stacked = StackedLinear([linear, linear])
    assert torch.equal(stacked.decode(x), torch.cat([linear.decode(x)] * 2, dim=-1))
    assert torch.equal(stacked.prefill(x), stacked.decode(x))


@requires_int4
@each_case("bits", [4, 6, 8, None])
def test_embeddings_are_looked_up_exactly_and_tied_heads_multiply(bits: int | None) -> None:
    """A head spends no memory on prompts."""
    dense = DenseWeight(weight=torch.randn(64, 32).bfloat16())
    stored = dense if bits is None else grouped(bits, 64, 32)
    embedding = LinearFactory(CPU, torch.float32).embedding(stored)
    ids, x = torch.tensor([3, 0, 63, 3]), torch.randn(3, 32)
    table = stored.weight if isinstance(stored, DenseWeight) else stored.dequantize()
    assert torch.equal(embedding.lookup(ids), table.float()[ids])
    head = embedding.as_linear()
    assert_close(head.decode(x), expected(stored, x))
    if bits == 8:
        assert isinstance(head, QuantizedLinear) and head.prefill_weight is None


@pytest.mark.parametrize("device", DEVICES)
@each_case("bias", [False, True])
@each_case("num_rows", [1, 3, 33])
def test_fp8_multiplies_what_it_rounded(device: str, bias: bool, num_rows: int) -> None:
    """Each value within half a step; other shapes and output heads stay dense."""
    if device == "cuda" and not has_fp8(torch.device(device)):
        pytest.skip("needs compute capability 8.9")
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(48, 64, generator=generator).bfloat16()
    weight[3] = 0
    codes, scales = fp8_rows(weight)
    assert scales.shape == (48, 1)
    assert (codes.float().abs().amax(dim=1)[:3] == LARGEST_FP8).all()
    error = (codes.float() * scales - weight.float()).abs()
    assert (error <= weight.float().abs() * 2**-4 * 1.01 + scales * 2**-9).all()
    dense = DenseWeight(weight=weight, bias=torch.randn(48, generator=generator) if bias else None)
    factory = LinearFactory(torch.device(device), torch.bfloat16, fp8=True)
    linear, outcome = factory.linear(dense)
    assert isinstance(linear, Fp8Linear) and outcome == "rounded to fp8, fp8 products"
    x = torch.randn(num_rows, 64, generator=generator).bfloat16()
    x_codes, x_scales = fp8_rows(x)
    rounded = DenseWeight(weight=codes.float() * scales, bias=dense.bias)
    for phase in (linear.decode, linear.prefill):
        found = phase(x.to(device))
        assert found.dtype == torch.bfloat16
        assert_close(found, expected(rounded, x_codes.float() * x_scales))
    for shape, prefills in (((40, 64), True), ((48, 64), False)):
        linear, _ = factory.linear(DenseWeight(weight=torch.zeros(shape)), prefills=prefills)
        assert isinstance(linear, DenseLinear)

"""Packed weights on the card give what their dequantised numbers give, in every stored format."""

from __future__ import annotations

import pytest
import torch

from inference.models.cuda.packed import PackedLinear
from inference.models.cuda.packed_trial import PackedTrials
from inference.models.linear import LinearFactory
from inference.models.stored import GroupedWeight, PackedWeight, SuperBlockWeight

OUT_FEATURES, IN_FEATURES = 37, 512


def grouped(bits: int, *, signed: bool) -> GroupedWeight:
    generator = torch.Generator().manual_seed(bits)
    shape, groups = (OUT_FEATURES, IN_FEATURES), (OUT_FEATURES, IN_FEATURES // 32)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    codes = torch.randint(low, high, shape, generator=generator)
    scales = (torch.rand(groups, generator=generator) / 2**bits).half()
    minimums = None if signed else (-torch.rand(groups, generator=generator)).half()
    kind = torch.int8 if signed else torch.uint8
    bias = torch.randn(OUT_FEATURES, generator=generator)
    return GroupedWeight(
        bits=bits, codes=codes.to(kind), scales=scales, minimums=minimums, bias=bias
    )


def super_block(bits: int) -> SuperBlockWeight:
    generator = torch.Generator().manual_seed(bits)
    group = 32 if bits in (4, 5) else 16
    groups, blocks = (OUT_FEATURES, IN_FEATURES // group), (OUT_FEATURES, IN_FEATURES // 256)
    with_minimums = bits in (2, 4, 5)

    def small() -> torch.Tensor:
        return torch.randint(-32, 64, groups, generator=generator).to(torch.int8)

    def supers() -> torch.Tensor:
        return (torch.rand(blocks, generator=generator) / 2**bits / 32).half()

    shape = OUT_FEATURES, IN_FEATURES
    return SuperBlockWeight(
        bits=bits,
        codes=torch.randint(0, 2**bits, shape, generator=generator).to(torch.uint8),
        scales=small(),
        super_scales=supers(),
        minimums=small() if with_minimums else None,
        super_minimums=-supers() if with_minimums else None,
    )


WEIGHTS = {
    "Q4": grouped(4, signed=False),
    "Q5 with minimums": grouped(5, signed=False),
    "Q5": grouped(5, signed=True),
    "Q8": grouped(8, signed=True),
} | {f"Q{bits}_K": super_block(bits) for bits in (2, 3, 4, 5, 6)}


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_both_phases_multiply_by_the_dequantised_weight(
    device: torch.device, weight: PackedWeight
) -> None:
    x = torch.randn(19, IN_FEATURES, generator=torch.Generator().manual_seed(1))
    wanted = x @ weight.dequantize().T + (0 if weight.bias is None else weight.bias)
    linear = PackedLinear(weight, device, torch.float32)
    for phase in (linear.decode, linear.prefill):
        assert torch.allclose(phase(x.to(device)).cpu(), wanted, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_activations(device: torch.device, dtype: torch.dtype) -> None:
    weight = WEIGHTS["Q6_K"]
    x = torch.randn(3, IN_FEATURES, generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted = x.float() @ weight.dequantize().T
    found = PackedLinear(weight, device, dtype).decode(x.to(device))
    assert found.dtype == dtype
    assert float((found.cpu().float() - wanted).abs().max() / wanted.abs().max()) < 0.02


def test_a_row_is_the_same_whoever_is_beside_it(device: torch.device) -> None:
    x = torch.randn(20, IN_FEATURES, generator=torch.Generator().manual_seed(2)).to(device)
    linear = PackedLinear(WEIGHTS["Q4_K"], device, torch.float32)
    assert torch.equal(linear.decode(x[17:18]), linear.decode(x)[17:18])


def test_codes_take_their_bits(device: torch.device) -> None:
    linear = PackedLinear(WEIGHTS["Q6_K"], device, torch.float32)
    assert linear._high_codes is not None
    num_bytes = linear._codes.nbytes + linear._high_codes.nbytes
    assert num_bytes == OUT_FEATURES * IN_FEATURES * 6 // 8


def test_the_trial_finds_that_it_works(device: torch.device) -> None:
    trials = PackedTrials(device, torch.float32)
    assert [trials.reason_against(weight) for weight in WEIGHTS.values()] == [None] * len(WEIGHTS)


def test_a_kernel_that_is_wrong_or_cannot_run_is_not_used(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(PackedLinear):
        def prefill(self, x: torch.Tensor) -> torch.Tensor:
            return super().prefill(x) * 1.1

    def refuse(*arguments: object) -> None:
        raise RuntimeError("no compiler")

    weight = WEIGHTS["Q3_K"]
    monkeypatch.setattr("inference.models.cuda.packed.PackedLinear", Wrong)
    reason = PackedTrials(device, torch.float32).reason_against(weight)
    assert reason is not None
    assert reason.startswith("the Triton kernel was off by 0.1")
    monkeypatch.setattr("inference.models.cuda.packed.PackedLinear", refuse)
    reason = PackedTrials(device, torch.float32).reason_against(weight)
    assert reason == "Triton: RuntimeError"


def test_the_factory_keeps_packed_what_torch_has_no_kernel_for(device: torch.device) -> None:
    factory = LinearFactory(device, torch.float32)
    factory._packed_trials = PackedTrials(device, torch.float32)  # as on CUDA
    linear, words = factory.linear(WEIGHTS["Q6_K"])
    assert isinstance(linear, PackedLinear)
    assert words == "6-bit codes in a Triton kernel"

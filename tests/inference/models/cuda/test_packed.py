"""Packed weights on the card give what their dequantised numbers give, in every stored format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from inference.models.cuda.card import captured_ms
from inference.models.cuda.packed import PackedLinear
from inference.models.cuda.trials import PackedTrials
from inference.models.layers.linear import LinearFactory, QuantizedLinear
from inference.models.weights.stored import (
    CodebookWeight,
    DenseWeight,
    Fp8Weight,
    GroupedWeight,
    PackedWeight,
    SuperBlockWeight,
    with_tensors,
)
from tests.inference.models.cuda.random_experts import (
    IN_FEATURES,
    K_KINDS,
    OUT_FEATURES,
    TABLE_KINDS,
    random_expert,
)

pytestmark = pytest.mark.slow


def random_weight(kind: str) -> PackedWeight:
    """One of groups has a bias."""
    weight = random_expert(kind, seed=4)
    assert not isinstance(weight, DenseWeight | Fp8Weight)
    if not isinstance(weight, GroupedWeight):
        return weight
    return replace(
        weight, bias=torch.randn(OUT_FEATURES, generator=torch.Generator().manual_seed(4))
    )


GROUPED_KINDS = ("Q4", "Q5", "Q5 with minimums", "Q6", "Q8")
WEIGHTS = {kind: random_weight(kind) for kind in (*GROUPED_KINDS, *K_KINDS, *TABLE_KINDS)}


def of_width(name: str, in_features: int) -> PackedWeight:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 1:
            return tensor
        features = in_features * tensor.shape[1] // IN_FEATURES
        return torch.cat([tensor, tensor], dim=1)[:, :features]

    return with_tensors(WEIGHTS[name], cut)


@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_both_phases_multiply_by_the_dequantised_weight(
    device: torch.device, weight: PackedWeight
) -> None:
    x = torch.randn(19, IN_FEATURES, generator=torch.Generator().manual_seed(1))
    wanted = x @ weight.dequantize().T + (0 if weight.bias is None else weight.bias)
    linear = PackedLinear(weight, device, torch.float32)
    for phase in (linear.decode, linear.prefill):
        error = float((phase(x.to(device)).cpu() - wanted).abs().max() / wanted.abs().max())
        # Scales that are products are rounded by float16.
        is_product = isinstance(weight, SuperBlockWeight | CodebookWeight)
        assert error < (2**-11 if is_product else 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_activations(device: torch.device, dtype: torch.dtype) -> None:
    weight = WEIGHTS["Q6_K"]
    x = torch.randn(3, IN_FEATURES, generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted = x.float() @ weight.dequantize().T
    found = PackedLinear(weight, device, dtype).decode(x.to(device))
    assert found.dtype == dtype
    assert float((found.cpu().float() - wanted).abs().max() / wanted.abs().max()) < 0.02


@pytest.mark.parametrize("sizes", [(1, 5, 8), (9, 11, 16), (33, 40)])
def test_a_row_is_the_same_whoever_is_beside_it(
    device: torch.device, sizes: tuple[int, ...]
) -> None:
    x = torch.randn(40, IN_FEATURES, generator=torch.Generator().manual_seed(2)).to(device)
    linear = PackedLinear(WEIGHTS["Q4_K"], device, torch.float32)
    watched = [linear.decode(x[:rows])[0] for rows in sizes]
    watched += [linear.decode(x.flip(0)[-rows:])[-1] for rows in sizes]
    tolerance = 0.0 if device.type == "cuda" else 1e-5
    for row in watched[1:]:
        torch.testing.assert_close(row, watched[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("in_features", [96, 576])
@pytest.mark.parametrize("name", ["Q4", "Q5", "Q8"])
def test_features_that_do_not_fill_a_step(
    device: torch.device, name: str, in_features: int
) -> None:
    weight = of_width(name, in_features)
    x = torch.randn(2, in_features, generator=torch.Generator().manual_seed(3)).to(device)
    wanted = x.cpu() @ weight.dequantize().T + weight.bias
    linear = PackedLinear(weight, device, torch.float32)
    for phase in (linear.decode, linear.prefill):
        assert torch.allclose(phase(x).cpu(), wanted, rtol=1e-4, atol=1e-4)


def test_scales_far_apart_keep_their_precision(device: torch.device) -> None:
    exponents = torch.tensor([[-30.0], [0.0], [30.0]])
    scales = torch.exp2(exponents - torch.arange(4))
    codes = torch.arange(128, dtype=torch.uint8).remainder(16).repeat(3, 1)
    weight = GroupedWeight(bits=4, codes=codes, scales=scales, minimums=-8 * scales)
    found = PackedLinear(weight, device, torch.float32).unpacked(torch.float32).cpu()
    assert torch.equal(found, weight.dequantize())


def test_codes_take_their_bits(device: torch.device) -> None:
    linear = PackedLinear(WEIGHTS["Q6_K"], device, torch.float32)
    assert linear.packed.high_words is not None
    num_bytes = linear.packed.words.nbytes + linear.packed.high_words.nbytes
    assert num_bytes == OUT_FEATURES * IN_FEATURES * 6 // 8


def test_the_trial_finds_that_it_works(device: torch.device) -> None:
    trials = PackedTrials(device, torch.float32)
    some = [WEIGHTS["Q4"], WEIGHTS["Q6_K"], *(WEIGHTS[kind] for kind in TABLE_KINDS)]
    assert {trials.reason_against(weight) for weight in some} == {None}


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


def timed(*milliseconds: float) -> PackedTrials:
    readings = iter(milliseconds)

    def read(work: Callable[[], object], device: torch.device) -> float:
        work()
        return next(readings)

    return PackedTrials(torch.device("cpu"), torch.float32, read)


def test_each_shape_is_timed_once(device: torch.device) -> None:
    weight = WEIGHTS["Q4"]
    longer = with_tensors(weight, lambda tensor: torch.cat([tensor, tensor]))
    other = PackedLinear(weight, device, torch.float32)
    trials = timed(1.0, 2.0, 2.0, 1.0)
    found = [trials.is_slower(w, lambda: other) for w in (weight, weight, longer, longer)]
    assert found == [False, False, True, True]


def test_what_cannot_be_timed_counts_as_slower(device: torch.device) -> None:
    def refuse() -> PackedLinear:
        raise torch.cuda.OutOfMemoryError

    assert timed(1.0, 2.0).is_slower(WEIGHTS["Q4"], refuse)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_row_is_timed_on_the_card(device: torch.device) -> None:
    work = PackedLinear(WEIGHTS["Q4"], device, torch.bfloat16)
    x = torch.ones(1, IN_FEATURES, device=device, dtype=torch.bfloat16)
    assert 0 < captured_ms(lambda: work.decode(x), device) < 1


@pytest.mark.parametrize(("name", "bits"), [("Q6_K", 6), ("IQ4_XS", 4), ("TQ2_0", 2)])
def test_the_factory_keeps_packed_what_torch_has_no_kernel_for(
    device: torch.device, name: str, bits: int
) -> None:
    factory = LinearFactory(device, torch.float32)
    factory.packed_trials = timed()
    linear, words = factory.linear(WEIGHTS[name])
    assert isinstance(linear, PackedLinear)
    assert words == f"{bits}-bit codes in a Triton kernel"


@pytest.mark.parametrize(("name", "has_copy"), [("Q4", True), ("Q6_K", False)])
def test_only_copies_that_the_estimate_knows_of_are_kept(
    device: torch.device, name: str, has_copy: bool
) -> None:
    weight = with_tensors(WEIGHTS[name], lambda tensor: tensor[:32])
    factory = LinearFactory(device, torch.float32)
    factory.packed_trials, factory.prefill_copies = timed(1.0, 2.0), True
    linear, words = factory.linear(weight)
    assert isinstance(linear, PackedLinear)
    assert words.endswith("kernel, prompts on a bfloat16 copy" if has_copy else "kernel")
    assert factory.copied_bytes == has_copy * weight.codes.numel() * 2
    x = torch.randn(4, IN_FEATURES, generator=torch.Generator().manual_seed(5)).to(device)
    assert torch.allclose(linear.prefill(x), linear.decode(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("ours_ms", "expected"), [(1.0, PackedLinear), (3.0, QuantizedLinear)])
def test_the_factory_takes_the_faster_of_two_kernels(ours_ms: float, expected: type) -> None:
    weight = with_tensors(WEIGHTS["Q4"], lambda tensor: tensor[:32])
    factory = LinearFactory(torch.device("cpu"), torch.float32)
    factory.packed_trials = timed(ours_ms, 2.0)
    linear, _ = factory.linear(weight)
    assert isinstance(linear, expected)

"""Sums, norms and gates by one kernel each are torch's, rounding included."""

from __future__ import annotations

import torch

from inference.models.cuda.pointwise import TritonPointwise
from inference.models.layers.norms import TorchPointwise
from tests.cases import each_case

EPS = 1e-5


def random(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case(("num_rows", "features"), [(1, 64), (3, 576), (2, 2048)])
def test_a_sum_and_its_norm(
    device: torch.device, dtype: torch.dtype, num_rows: int, features: int
) -> None:
    hidden, added = random(device, dtype, 2 * num_rows, features).chunk(2)
    weight = random(device, dtype, features)
    before = hidden.clone()
    wanted = TorchPointwise().add_and_norm(hidden, added, weight, EPS)
    found = TritonPointwise().add_and_norm(hidden, added, weight, EPS)
    # The interpreter cuts bfloat16 off where a card rounds to the nearest.
    step = torch.finfo(dtype).eps
    if device.type == "cuda" or dtype != torch.bfloat16:
        assert torch.equal(found[0], wanted[0])
    assert torch.allclose(found[0], wanted[0], rtol=step, atol=0)
    assert torch.allclose(found[1], wanted[1], rtol=3 * step, atol=3 * step)
    assert torch.equal(hidden, before)


def test_nothing_added(device: torch.device) -> None:
    hidden, weight = (random(device, torch.float32, *shape) for shape in ((2, 64), (64,)))
    wanted = TorchPointwise().add_and_norm(hidden, None, weight, EPS)
    found = TritonPointwise().add_and_norm(hidden, None, weight, EPS)
    assert all(torch.equal(ours, right) for ours, right in zip(found, wanted, strict=True))


@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("features", [48, 1536])
def test_a_gate(device: torch.device, dtype: torch.dtype, features: int) -> None:
    gate_up = random(device, dtype, 3, 2 * features) * 4
    gate_up[0, :4] = torch.tensor([-1e4, 1e4, 0.0, float("nan")])
    wanted = TorchPointwise().gate(gate_up)
    found = TritonPointwise().gate(gate_up)
    tolerance = torch.finfo(dtype).eps * 2
    assert torch.allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)

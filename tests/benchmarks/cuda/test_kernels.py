"""The single kernels compare like with like: every way of attending gives the same answer, so does
every drawer; without a card they report that."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cuda import kernels
from benchmarks.subjects.device_limits import copy_bytes_per_s, matmul_flops_per_s
from tests.cases import each_case


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure")
@each_case("name", kernels.KERNELS)
def test_without_a_card_every_line_is_unmeasured(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels.main(name)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 14
    assert all(line.endswith("unmeasured: no CUDA device") for line in lines)


def test_a_cpu_copies_and_multiplies_at_some_rate() -> None:
    device = torch.device("cpu")
    assert copy_bytes_per_s(device, num_bytes=2**20) > 0
    assert matmul_flops_per_s(device, side=64) > 0


def test_a_line_that_fails_reports_how(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise TypeError("an unexpected keyword argument\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert kernels.result_of(fail) == "failed: TypeError: an unexpected keyword argument"


@pytest.mark.slow
@each_case(("tokens_each", "work"), [(1, kernels.decode_work), (40, kernels.prefill_work)])
def test_all_ways_of_attending_compute_the_same(
    device: torch.device, tokens_each: int, work: object
) -> None:
    problem = kernels.Problem.make(2, 40, device)
    assert problem.queries(tokens_each).shape[0] == 2 * tokens_each
    found = []
    for attention_on in kernels.ATTENTIONS.values():
        torch.manual_seed(1)
        found.append(work(problem, attention_on(device))().float())  # type: ignore[operator]
    assert torch.allclose(found[0], found[1], atol=0.03)


@pytest.mark.parametrize("sampling", kernels.SAMPLINGS)
def test_all_drawers_draw_the_same(device: torch.device, sampling: str) -> None:
    scores, params = kernels.scores_of(3, 500, device), kernels.SAMPLINGS[sampling]
    found = [
        kernels.draw_work(drawer_on(device), scores, params)().tolist()
        for drawer_on in kernels.DRAWERS.values()
    ]
    assert found[0] == found[1]
    assert len(set(found[0])) > 1

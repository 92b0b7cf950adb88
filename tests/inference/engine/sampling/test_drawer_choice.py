"""Triton draws where it runs and is right, and torch otherwise."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from inference.engine.sampling import drawing
from inference.engine.sampling.drawing import (
    Draw,
    TorchDrawer,
    TritonDrawer,
    choose_drawer,
    drawer_on_card,
    try_drawer,
)
from inference.models.cuda.setup import WrongResultError
from tests.cases import each_case
from tests.inference.models.cuda.tiny import tiny_model

CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a card runs no kernel on a CPU's tensors")
@pytest.mark.slow
def test_triton_where_it_runs() -> None:
    drawer, words = drawer_on_card(61, CPU)
    assert isinstance(drawer, TritonDrawer)
    assert words == "Triton drawing"
    assert drawer.is_exact


def test_on_a_cpu_nothing_is_tried() -> None:
    drawer, words = choose_drawer(tiny_model(CPU))
    assert isinstance(drawer, TorchDrawer)
    assert words == ""
    assert not drawer.is_exact


class Wrong(TorchDrawer):
    """Rounds as a kernel may, and replaces the draw's parameters by ``others``."""

    def __init__(self, device: torch.device, **others: float) -> None:
        super().__init__()
        self._others = others

    def draw(
        self, scores: torch.Tensor, draws: Ordered[Draw], num_candidates: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wrong = [self._wrong(draw) for draw in draws]
        noise = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)) * 1e-6
        return super().draw(scores + noise, wrong, num_candidates)

    def _wrong(self, draw: Draw) -> Draw:
        return replace(draw, params=msgspec.structs.replace(draw.params, **self._others))


class FirstRow(Wrong):
    def _wrong(self, draw: Draw) -> Draw:
        return replace(draw, row=0)


class Neighbour(Wrong):
    def draw(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        token_ids, is_short = super().draw(*arguments)
        return token_ids + 1, is_short


class LastOfEquals(TorchDrawer):
    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        token_ids, are_finite = super().likeliest(scores.flip(1))
        return scores.shape[1] - 1 - token_ids, are_finite


class BlindToNumbers(TorchDrawer):
    def likeliest(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().likeliest(scores.nan_to_num(0.0))


@each_case(
    "drawer",
    [
        Wrong(CPU, temperature=1.0),
        Wrong(CPU, top_k=0),
        Wrong(CPU, top_p=1.0),
        Wrong(CPU, min_p=0.0),
        FirstRow(CPU),
        Neighbour(CPU),
        LastOfEquals(),
        BlindToNumbers(),
    ],
    ids=lambda drawer: f"{type(drawer).__name__} {getattr(drawer, '_others', '')}",
)
def test_what_is_wrong_is_found(drawer: TorchDrawer) -> None:
    with pytest.raises(WrongResultError):
        try_drawer(drawer, 61, CPU)


@each_case("vocab_size", [6, 61, 50_000])
def test_torch_passes_its_own_trial_and_rounding_is_not_wrong(vocab_size: int) -> None:
    for drawer in (TorchDrawer(), Wrong(CPU)):
        try_drawer(drawer, vocab_size, CPU)


def _refuses(device: torch.device) -> TritonDrawer:
    raise RuntimeError("no compiler")


@each_case(
    ("triton_drawer", "reason"), [(Neighbour, "WrongResultError"), (_refuses, "RuntimeError")]
)
def test_what_fails_there_leaves_torch(
    monkeypatch: pytest.MonkeyPatch, triton_drawer: object, reason: str
) -> None:
    monkeypatch.setattr(drawing, "TritonDrawer", triton_drawer)
    drawer, words = drawer_on_card(61, CPU)
    assert type(drawer) is TorchDrawer
    assert words == f"torch drawing (Triton: {reason})"

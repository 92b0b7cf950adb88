"""A model gets what runs on its device and is right there, and stays as it was otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch

from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.cuda import setup
from inference.models.cuda.attention import TritonAttention, Tuning
from inference.models.cuda.pointwise import TritonPointwise
from inference.models.cuda.rotation import triton_rotation
from inference.models.decoder import DecoderModel
from inference.models.device_step import DeviceStep
from inference.models.graphed import GraphedDecoder
from inference.models.layers.attention import Attend, TorchAttention
from inference.models.layers.rope import RopeTable, Rotation, torch_rotation
from tests.cases import each_case
from tests.inference.models.cuda.tiny import CONFIG, tiny_model


def test_triton_where_it_runs(device: torch.device) -> None:
    model = tiny_model(device)
    model.config = replace(model.config, has_predictor=True)
    graphed, execution = setup.accelerate(model)
    assert isinstance(graphed, GraphedDecoder)
    assert execution == "torch operators, Triton attention, rotation, pointwise"
    assert model.operators.rotation is triton_rotation
    assert isinstance(model.operators.pointwise, TritonPointwise)
    assert isinstance(model.operators.attention["attention"], TritonAttention)


@each_case(
    "changes",
    [
        {"sliding_window": 40},
        {"mixers": ("chunked",) * CONFIG.num_layers, "chunk_tokens": 40},
        {"has_sinks": True},
        {"attention_soft_cap": 20.0},
    ],
    ids=str,
)
def test_attention_that_a_family_asks_for_runs_on_triton(
    device: torch.device, changes: dict[str, Any]
) -> None:
    model = tiny_model(device, config=replace(CONFIG, **changes))
    (kind,) = model.operators.attention
    assert isinstance(setup.working_attention(model, kind), TritonAttention)


@each_case("changes", [{"qk_norm": False}, {"is_qk_norm_after_rotation": True}], ids=str)
def test_rotation_that_a_family_asks_for_runs_on_triton(
    device: torch.device, changes: dict[str, Any]
) -> None:
    model = tiny_model(device, config=replace(CONFIG, **changes))
    setup.install_rotation(model)
    assert model.operators.rotation is triton_rotation


def test_what_no_kernel_computes_is_named(device: torch.device) -> None:
    model = tiny_model(device, config=replace(CONFIG, rotary_dim=CONFIG.head_dim // 2))
    with pytest.raises(setup.NotBuiltError, match="only whole heads are rotated, by halves"):
        setup.install_rotation(model)


@each_case(
    ("fits", "tried"),
    [
        (lambda tuning: tuning.stages <= 2, [(3, 64), (2, 64)]),
        (lambda tuning: tuning.prefill_tile_rows < 64, [(3, 64), (2, 64), (1, 64), (1, 32)]),
    ],
    ids=["a shorter pipeline", "smaller tiles"],
)
def test_a_card_with_little_shared_memory_gets_what_fits(
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
    fits: Callable[[Tuning], bool],
    tried: list[tuple[int, int]],
) -> None:
    class OutOfResourcesError(Exception):
        pass

    found: list[Tuning] = []

    class Picky(TritonAttention):
        def __init__(
            self,
            window: int | None,
            num_processors: int,
            tuning: Tuning,
            soft_cap: float | None,
            *,
            sees_ahead: bool,
            is_chunked: bool,
        ) -> None:
            super().__init__(
                *(window, num_processors, tuning, soft_cap),
                sees_ahead=sees_ahead,
                is_chunked=is_chunked,
            )
            found.append(tuning)

        def of_step(self, step: DeviceStep) -> Attend:
            if not fits(found[-1]):
                raise OutOfResourcesError
            return super().of_step(step)

    monkeypatch.setattr("inference.models.cuda.attention.TritonAttention", Picky)
    assert isinstance(setup.working_attention(tiny_model(device), "attention"), Picky)
    assert [(tuning.stages, tuning.prefill_tile_rows) for tuning in found] == tried


class Wrong(TritonAttention):
    def of_step(self, step: DeviceStep) -> Attend:
        attend = super().of_step(step)
        return lambda *layer: attend(*layer) + 0.1


def _refuses(*arguments: object, **named: object) -> None:
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(
    ("attention", "reason"), [(Wrong, "off by 0.1"), (_refuses, "RuntimeError")]
)
def test_what_fails_there_leaves_torch(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, attention: object, reason: str
) -> None:
    monkeypatch.setattr("inference.models.cuda.attention.TritonAttention", attention)
    model: DecoderModel = tiny_model(device)
    assert setup.accelerate(model) == (model, f"torch operators (no Triton attention: {reason})")
    assert isinstance(model.operators.attention["attention"], TorchAttention)


def test_a_kernel_that_fails_leaves_torchs_operator_in_its_place(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.models.cuda.rotation.triton_rotation", _refuses)
    model = tiny_model(device)
    graphed, execution = setup.accelerate(model)
    assert isinstance(graphed, GraphedDecoder)
    words = "torch operators, Triton attention, pointwise (no Triton rotation: RuntimeError)"
    assert execution == words
    assert model.operators.rotation is torch_rotation
    assert isinstance(model.operators.pointwise, TritonPointwise)


def test_pointwise_kernels_that_are_wrong_are_found(device: torch.device) -> None:
    class Ungated(TritonPointwise):
        def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
            return gate_up.chunk(2, dim=-1)[1]

    class Unweighted(TritonPointwise):
        def add_and_norm(
            self, hidden: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return super().add_and_norm(hidden, added, torch.ones_like(weight), eps)

    model = tiny_model(device)
    setup.try_pointwise(model, TritonPointwise())
    for wrong in (Ungated(), Unweighted()):
        with pytest.raises(setup.WrongResultError):
            setup.try_pointwise(model, wrong)


@each_case("kv_format", get_args(KVFormat))
def test_a_rotation_that_is_wrong_is_found(device: torch.device, kv_format: KVFormat) -> None:
    def unrotated(config: ModelConfig, rope: RopeTable, step: DeviceStep) -> Rotation:
        nowhere = torch.zeros_like(step.positions)
        return torch_rotation(config, rope, replace(step, positions=nowhere))

    model = tiny_model(device, kv_format)
    setup.try_rotation(model, triton_rotation)
    with pytest.raises(setup.WrongResultError):
        setup.try_rotation(model, unrotated)

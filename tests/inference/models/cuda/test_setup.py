"""A model gets what runs on its device and is right there, and stays as it was otherwise. Ranks run
the kernels that rank 0 chose, whatever their own trials and times are. And small kernels against
torch's operators: sums with their norms, gates, the rotation with norms and KV write, and the chunk
states of hybrids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from inference.models.config import ModelConfig
from inference.models.cuda import setup
from inference.models.cuda.attention import TritonAttention, Tuning
from inference.models.cuda.operators import TritonPointwise, triton_chunk_states, triton_rotation
from inference.models.cuda.packed import PackedLinear
from inference.models.cuda.trials import PackedTrials
from inference.models.device_step import DeviceStep
from inference.models.errors import UnlikeKernelsError
from inference.models.graphed import GraphedDecoder
from inference.models.kv_format import KVFormat
from inference.models.layers.attention import Attend, TorchAttention
from inference.models.layers.attention_mixer import AttentionMixer
from inference.models.layers.linear import DenseLinear, LinearFactory, QuantizedLinear
from inference.models.layers.norms import TorchPointwise
from inference.models.layers.rope import RopeTable, Rotation, rope_table, torch_rotation
from inference.models.layers.state_rows import torch_chunk_states
from inference.models.native.packing import Format
from inference.models.paged_kv import new_layer
from inference.models.ranks import SharedChoices
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.models.cuda.tiny import CONFIG, tiny_model
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.stored_weights import stored_as

on_processors = pytest.mark.skipif(
    torch.cuda.is_available(), reason="Triton's interpreter runs it on processors"
)


def test_what_a_family_asks_for_runs_on_triton_or_is_named(device: torch.device) -> None:
    for changes in (
        {"sliding_window": 40},
        {"mixers": ("chunked",) * CONFIG.num_layers, "chunk_tokens": 40},
        {"has_sinks": True},
        {"attention_soft_cap": 20.0},
    ):
        model = tiny_model(device, config=replace(CONFIG, **changes))
        (kind,) = model.operators.attention
        assert isinstance(setup.working_attention(model, kind), TritonAttention), changes
    for is_after in (False, True):
        own = {"qk_norm": is_after, "is_qk_norm_after_rotation": is_after}
        model = tiny_model(device, config=replace(CONFIG, **own))
        setup.try_rotation(model, triton_rotation)
    model = tiny_model(device, config=replace(CONFIG, rotary_dim=CONFIG.head_dim // 2))
    with pytest.raises(setup.UnfitKernelError, match="only whole heads are rotated, by halves"):
        setup.try_rotation(model, triton_rotation)


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
        def __init__(self, *given: Any, **own: Any) -> None:
            super().__init__(*given, **own)
            found.append(given[2])

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


@each_case(("attention", "reason"), [(Wrong, "off by 0.1"), (_refuses, "RuntimeError")])
def test_what_fails_leaves_torchs_operator_in_its_place(
    device: torch.device, monkeypatch: pytest.MonkeyPatch, attention: object, reason: str
) -> None:
    """Without attention there are no graphs; without a rotation there is all else."""
    model = tiny_model(device)
    model.config = replace(model.config, has_predictor=True)
    graphed, execution = setup.accelerate(model)
    assert isinstance(graphed, GraphedDecoder)
    assert execution == "torch operators, Triton attention, rotation, pointwise"
    assert model.operators.rotation is triton_rotation
    assert isinstance(model.operators.attention["attention"], TritonAttention)
    monkeypatch.setattr("inference.models.cuda.operators.triton_rotation", _refuses)
    model = tiny_model(device)
    graphed, execution = setup.accelerate(model)
    assert isinstance(graphed, GraphedDecoder)
    words = "torch operators, Triton attention, pointwise (no Triton rotation: RuntimeError)"
    assert execution == words
    assert model.operators.rotation is torch_rotation
    assert isinstance(model.operators.pointwise, TritonPointwise)
    monkeypatch.setattr("inference.models.cuda.attention.TritonAttention", attention)
    model = tiny_model(device)
    assert setup.accelerate(model) == (model, f"torch operators (no Triton attention: {reason})")
    assert isinstance(model.operators.attention["attention"], TorchAttention)


def test_kernels_that_are_wrong_are_found(device: torch.device) -> None:
    class Ungated(TritonPointwise):
        def gate(self, gate_up: torch.Tensor) -> torch.Tensor:
            return gate_up.chunk(2, dim=-1)[1]

    class Unweighted(TritonPointwise):
        def add_and_norm(self, hidden: Any, added: Any, weight: Any, eps: float) -> Any:
            return super().add_and_norm(hidden, added, torch.ones_like(weight), eps)

    def unrotated(config: ModelConfig, rope: RopeTable, step: DeviceStep) -> Rotation:
        nowhere = torch.zeros_like(step.positions)
        return torch_rotation(config, rope, replace(step, positions=nowhere))

    model = tiny_model(device)
    setup.try_pointwise(model, TritonPointwise())
    for wrong in (Ungated(), Unweighted()):
        with pytest.raises(setup.UnfitKernelError):
            setup.try_pointwise(model, wrong)
    for kv_format in get_args(KVFormat):
        model = tiny_model(device, kv_format)
        setup.try_rotation(model, triton_rotation)
        with pytest.raises(setup.UnfitKernelError):
            setup.try_rotation(model, unrotated)


@on_processors
def test_chunk_states_that_are_wrong_are_found(tmp_path: Path) -> None:
    directory = tiny_hybrid.save(tiny_hybrid.qwen3_5(), tmp_path)
    model = tiny_hybrid.on_torch(directory, tmp_path / "cache")
    _, words = setup.install_kernels(model)
    assert "chunk states" in words and model.operators.chunk_states is triton_chunk_states
    with pytest.raises(setup.UnfitKernelError):
        setup.try_chunk_states(model, lambda a, b, s: torch_chunk_states(a, b, s * 1.01))


WEIGHT = stored_as(Format.Q4, 16, 64, seed=1)


class Rank(LinearFactory):
    """The factory of a rank whose card takes ``ours_ms`` by our kernel and 2 by torch's."""

    def __init__(
        self,
        meeting: Path,
        rank: int,
        ours_ms: float,
        reason: str | None = None,
        timeout_s: float = 5,
    ) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self.num_timed = 0
        readings = iter([ours_ms, 2.0])

        def timed(work: Callable[[], object], device: torch.device) -> float:
            self.num_timed += 1
            return next(readings)

        self.packed_trials = PackedTrials(torch.device("cpu"), torch.float32, timed)
        if reason is not None:
            self.packed_trials.reason_against = lambda _: reason  # type: ignore[method-assign]
        self.choose_kernel = SharedChoices(meeting, rank, 2, timeout_s=timeout_s)


@on_processors
@each_case(
    ("first_ms", "other_ms", "kind"), [(1.0, 3.0, PackedLinear), (3.0, 1.0, QuantizedLinear)]
)
def test_rank_0_decides(tmp_path: Path, first_ms: float, other_ms: float, kind: type) -> None:
    ranks = [Rank(tmp_path / "m", 0, first_ms), Rank(tmp_path / "m", 1, other_ms)]
    for rank in ranks:
        for _ in range(2):
            assert isinstance(rank.linear(WEIGHT)[0], kind)
    assert [rank.num_timed for rank in ranks] == [2, 0]
    for name in ("other", "alone"):
        (tmp_path / name).mkdir()
    meeting = tmp_path / "other" / "m"
    first, other = Rank(meeting, 0, 1.0), Rank(meeting, 1, 1.0, "off by 0.3")
    first.linear(WEIGHT)
    with pytest.raises(UnlikeKernelsError, match=r"rank 0 multiplies 4-bit weights packed.*0\.3"):
        other.linear(WEIGHT)
    with pytest.raises(RuntimeError, match="weight 0"):  # a rank that hears nothing
        Rank(tmp_path / "alone" / "m", 1, 1.0, timeout_s=0.1).linear(WEIGHT)


EPS = 1e-5
FLOAT, BFLOAT = torch.float32, torch.bfloat16
NUM_SLOTS = 16
HALF_A_CODE = {"bf16": 2**-8, "fp16": 2**-11, "int8": 0.5 / 127, "fp8": 2**-4}
"""Relative to the largest value."""


def random_rows(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


@each_case("dtype", [FLOAT, BFLOAT, torch.float16])
@each_case(("num_rows", "features"), [(1, 64), (3, 576), (2, 2048)])
def test_a_sum_with_its_norm_and_a_gate(
    device: torch.device, dtype: torch.dtype, num_rows: int, features: int
) -> None:
    ours, theirs = TritonPointwise(), TorchPointwise()
    hidden, added = random_rows(device, dtype, 2 * num_rows, features).chunk(2)
    weight, before = random_rows(device, dtype, features), hidden.clone()
    found, wanted = (one.add_and_norm(hidden, added, weight, EPS) for one in (ours, theirs))
    # The interpreter cuts bfloat16 off where a card rounds to the nearest.
    step = torch.finfo(dtype).eps
    if device.type == "cuda" or dtype != BFLOAT:
        assert torch.equal(found[0], wanted[0])
    assert torch.allclose(found[0], wanted[0], rtol=step, atol=0)
    assert torch.allclose(found[1], wanted[1], rtol=3 * step, atol=3 * step)
    assert torch.equal(hidden, before)
    if dtype == FLOAT:
        found, wanted = (one.add_and_norm(hidden, None, weight, EPS) for one in (ours, theirs))
        assert torch.equal(found[0], wanted[0])
        torch.testing.assert_close(found[1], wanted[1])
    gate_up = random_rows(device, dtype, 3, 2 * (features - 16)) * 4
    gate_up[0, :4] = torch.tensor([-1e4, 1e4, 0.0, float("nan")])
    tolerance = torch.finfo(dtype).eps * 2
    found_gate, wanted_gate = ours.gate(gate_up), theirs.gate(gate_up)
    assert torch.allclose(found_gate, wanted_gate, tolerance, tolerance, equal_nan=True)


@pytest.mark.slow
@each_case(
    ("head_dim", "kv_format", "dtype", "norm", "norms_rotated"),
    [
        (64, "fp32", FLOAT, False, False),
        *((head_dim, "fp32", FLOAT, True, False) for head_dim in (16, 64, 128)),
        *((head_dim, "fp32", dtype, True, True) for head_dim, dtype in ((64, FLOAT), (80, BFLOAT))),
        *((80, own, dtype, True, False) for own in get_args(KVFormat) for dtype in (FLOAT, BFLOAT)),
    ],
)
def test_rotation(
    device: torch.device,
    head_dim: int,
    kv_format: KVFormat,
    dtype: torch.dtype,
    norm: bool,
    norms_rotated: bool,
) -> None:
    own = {"qk_norm": norm, "is_qk_norm_after_rotation": norms_rotated}
    config = replace(CONFIG, num_heads=3, num_kv_heads=1, head_dim=head_dim, **own)
    generator = torch.Generator().manual_seed(head_dim)
    weights = [(torch.rand(head_dim, generator=generator) + 0.5).to(device, dtype) for _ in "qk"]
    nothing = DenseLinear(torch.zeros(1, 1))
    layer = AttentionMixer(
        kind="attention",
        qkv=nothing,
        output=nothing,
        query_norm=weights[0] if norm else None,
        key_norm=weights[1] if norm else None,
    )
    table = np.tile(np.array([[4], [15], [9]], dtype=np.int32), (1, 91))
    step = DeviceStep.of(StepInput.of_decodes([0, 0, 0], [0, 7, 90], table, 1), device)
    rope = rope_table(config, config.max_positions, device)
    qkv = torch.randn(3, 5 * head_dim, generator=generator).to(device, dtype)
    found = []
    for rotation in (torch_rotation, triton_rotation):
        kv = new_layer(NUM_SLOTS, 1, head_dim, kv_format, device)
        queries = rotation(config, rope, step)(layer, qkv, kv).queries
        stored = kv.gather(torch.arange(NUM_SLOTS, device=device), 1, FLOAT)
        found.append((queries.float(), stored))
    (queries, stored), (our_queries, our_stored) = found
    error = 2e-5 if dtype == FLOAT else 2**-5  # two of bfloat16 at 2 to 4
    assert torch.allclose(our_queries, queries, atol=error)
    # A value that lies between two codes may become either.
    error += 2 * HALF_A_CODE.get(kv_format, 0.0) * float(stored.abs().max())
    assert torch.allclose(our_stored, stored, atol=error)


@each_case("sizes", [(1, 2, 16, 16), (5, 3, 32, 24), (4, 1, 128, 40), (2, 2, 24, 8)])
def test_chunk_states(device: torch.device, sizes: tuple[int, int, int, int]) -> None:
    chunks, heads, keys, values = sizes
    generator = torch.Generator().manual_seed(1)
    carried = torch.randn(chunks, heads, keys, keys, generator=generator) / keys**0.5
    written = torch.randn(chunks, heads, keys, values, generator=generator)
    given = [part.to(device) for part in (carried, written, written[0] * 2)]
    for found, wanted in zip(triton_chunk_states(*given), torch_chunk_states(*given), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-4)

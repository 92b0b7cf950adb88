"""Latent attention on the native decoder against torch's operators: what blocks hold and in which
format, adapters, packed weights, and rows of drafts."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.backend import AnyModel
from inference.models.cache.kv_format import KVFormat, kv_bytes_per_token
from inference.models.native.model import NativeModel
from inference.models.registry import build_model
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.loading.conftest import opened
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS
from tests.inference.models.families.test_deepseek import saved
from tests.inference.models.steps import Query, step_of

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK = 32
TOKENS = [3 + 7 * i % 90 for i in range(50)]
LOOSEST: dict[KVFormat, float] = {"fp32": 1e-3, "bf16": 0.03, "int8": 0.03}
"""Of log probabilities. Where a number lies between two codes either may be kept."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("V3", tmp_path_factory.mktemp("latent") / "model")[1]


def both(library: ctypes.CDLL, folder: Path, kv_format: KVFormat) -> tuple[NativeModel, AnyModel]:
    found = parity.opened(folder, folder.parent / "cache")
    native = NativeModel(library, found.config, found.weights, CONTEXT_TOKENS, kv_format)
    torchs = build_model(found.config, found.weights, CONTEXT_TOKENS, kv_format)
    found.close()
    return native, torchs


@torch.inference_mode()
def steps_of(model: AnyModel, adapter: AdapterWeights | None = None) -> torch.Tensor:
    """A prompt in two chunks across a block's end, the second beside another sequence; then a row
    of one and three of the other, as drafts are verified."""
    kv = model.new_kv(4, BLOCK)
    prepared = None if adapter is None else model.prepare_adapter(adapter)

    def step(*queries: Query, num_decodes: int = 0) -> StepInput:
        made = step_of(*queries, block_tokens=BLOCK, num_decodes=num_decodes)
        others: list[Any] = [None] * (len(queries) - 1)
        return made if adapter is None else replace(made, adapters=[*others, prepared])

    steps = (
        step((TOKENS[:21], 0, [2, 0])),
        step((TOKENS[5:6], 0, [1]), (TOKENS[21:40], 21, [2, 0]), num_decodes=1),
        step((TOKENS[6:9], 1, [1]), (TOKENS[40:41], 40, [2, 0]), num_decodes=2),
    )
    return torch.cat([torch.log_softmax(model.forward(step, kv), dim=-1) for step in steps])


@each_case("kv_format", LOOSEST)
def test_both_paths_keep_the_same(library: ctypes.CDLL, folder: Path, kv_format: KVFormat) -> None:
    native, torchs = both(library, folder, kv_format)
    error = (steps_of(native) - steps_of(torchs)).abs().max()
    assert error <= LOOSEST[kv_format], error
    held = native.new_kv(3, BLOCK).block(0)
    assert held.keys() == {"keys"}
    assert held["keys"].nbytes == BLOCK * kv_bytes_per_token(native.config, kv_format)


def test_adapters_change_all_projections(library: ctypes.CDLL, folder: Path) -> None:
    native, torchs = both(library, folder, "fp32")
    generator = torch.Generator().manual_seed(5)
    shapes = adaptable_shapes(native.config)
    for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"):
        own = f"model.layers.1.self_attn.{name}"
        outputs, inputs = shapes[own]
        down = torch.randn(3, inputs, generator=generator)
        up = torch.randn(outputs, 3, generator=generator)
        adapter = AdapterWeights({own: LowRank(down, up, scale=0.1)})
        changed = steps_of(native, adapter)
        torch.testing.assert_close(changed, steps_of(torchs, adapter), atol=1e-3, rtol=0)
        assert (changed - steps_of(native)).abs().max() > 0.05, name


@each_case("bits", [4, 8])
def test_projections_and_experts_stay_packed(library: ctypes.CDLL, folder: Path, bits: int) -> None:
    found = opened(folder, folder.parent / "cache", quantization=f"q{bits}")
    native = NativeModel(library, found.config, found.weights, CONTEXT_TOKENS, "fp32")
    torchs = build_model(found.config, found.weights, CONTEXT_TOKENS, "fp32")
    found.close()
    assert f"kept in {bits} bits" in found.weights.report()
    error = (steps_of(native).exp() - steps_of(torchs).exp()).abs().sum(dim=-1) / 2
    assert error.median() < 0.15, error

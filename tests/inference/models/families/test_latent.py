"""Latent attention: both layouts of GGUF against transformers' answers in float32, and the native
decoder against torch's operators: what blocks hold and in which format, and adapters."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.backend import AnyModel
from inference.models.kv_format import KVFormat, kv_bytes_per_token
from inference.models.native.model import NativeModel
from inference.models.registry import build_model
from inference.models.step_input import StepInput
from tests.cases import each_case
from tests.inference.loading.conftest import opened
from tests.inference.models.families import parity
from tests.inference.models.families.latent_gguf import ROWS, save_latent
from tests.inference.models.families.rows import CONTEXT_TOKENS
from tests.inference.models.steps import logits_of

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK = 32
LOOSEST: dict[KVFormat, float] = {"fp32": 1e-3, "bf16": 0.03, "int8": 0.03}
"""Of log probabilities. Where a number lies between two codes either may be kept."""


def gguf_reference(name: str) -> PreTrainedModel:
    """YaRN's cosines and sines are multiplied by nothing, which is all that GGUF has."""
    row = ROWS[name]
    rope = row.config["rope_parameters"]
    if "mscale" in rope:
        rope = rope | {"mscale": rope["mscale_all_dim"]}
    return parity.build_reference(replace(row, config=row.config | {"rope_parameters": rope}))


@each_case("name", ["V2", "V2-Lite", "V3", "Kimi K2", "GLM-4.7-Flash"])
def test_both_layouts_of_gguf(library: ctypes.CDLL, name: str, tmp_path: Path) -> None:
    reference = gguf_reference(name)
    found = []
    for is_split in (True, False):
        path = save_latent(reference, tmp_path / f"{is_split}.gguf", is_split=is_split)
        on_torch = parity.built_on_torch(path, tmp_path)
        assert on_torch.config.latent.is_up_split is is_split
        parity.check_batch_mates(reference, on_torch)
        native = parity.natively(library, path, tmp_path)
        step = StepInput.of_sequence(range(3, 80, 10), BLOCK)
        found.append(native.forward(step, native.new_kv(2, BLOCK)))
        parity.check_batch_mates(reference, native)
    assert torch.equal(*found), "the same products of the same numbers"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reference = parity.build_reference(ROWS["V3"])
    return parity.save_safetensors(reference, tmp_path_factory.mktemp("latent") / "model")


def log_probabilities(model: AnyModel, adapter: AdapterWeights | None = None) -> torch.Tensor:
    prepared = None if adapter is None else model.prepare_adapter(adapter)
    return torch.cat(logits_of(model, BLOCK, adapter=prepared)).log_softmax(-1)


@each_case("kv_format", LOOSEST)
def test_both_paths_keep_the_same(
    library: ctypes.CDLL, folder: Path, kv_format: KVFormat, tmp_path: Path
) -> None:
    """And adapters change all projections."""
    found = opened(folder, tmp_path, dtype="float32")
    given = found.config, found.weights, CONTEXT_TOKENS, kv_format
    native, torchs = NativeModel(library, *given), build_model(*given)
    found.close()
    plain = log_probabilities(native)
    error = (plain - log_probabilities(torchs)).abs().max()
    assert error <= LOOSEST[kv_format], error
    assert native.new_kv(3, BLOCK).block(0).keys() == {"keys"}
    for model in (native, torchs):
        held = sum(one.nbytes for one in model.new_kv(3, BLOCK).block(0).values())
        assert held == BLOCK * kv_bytes_per_token(native.config, kv_format)
    generator = torch.Generator().manual_seed(5)
    for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj") * (kv_format == "fp32"):
        own = f"model.layers.1.self_attn.{name}"
        outputs, inputs = adaptable_shapes(native.config)[own]
        down = torch.randn(3, inputs, generator=generator)
        up = torch.randn(outputs, 3, generator=generator)
        adapter = AdapterWeights({own: LowRank(down, up, scale=0.1)})
        changed = log_probabilities(native, adapter)
        torch.testing.assert_close(changed, log_probabilities(torchs, adapter), atol=1e-3, rtol=0)
        assert (changed - plain).abs().max() > 0.05, name

"""Contexts that the operator clamps below what a step holds: models have no angles beyond them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import pytest

from inference.engine.load.load_engine import load_engine
from inference.models.config import ModelConfig
from inference.models.errors import PositionError
from inference.models.layers import rope, step
from inference.models.native import model as native_model
from inference.models.step_input import StepInput, block_table_of
from tests.cases import each_case
from tests.inference.engine.conftest import CONTEXT_TOKENS, Pair
from tests.inference.engine.load.loads import answer_of, cpu_spec


@each_case("dtype", ["bfloat16", "float32"], ids=["torch", "native"])
@each_case("context_tokens", [50, 128])
def test_a_clamped_context_loads_and_is_used_to_its_end(
    tiny_model_dir: Path,
    data_dir: Path,
    dtype: Literal["bfloat16", "float32"],
    context_tokens: int,
) -> None:
    spec = cpu_spec(
        tiny_model_dir,
        dtype=dtype,
        max_context_tokens=context_tokens,
        kv_memory_bytes=4 * 1024**2,
        max_concurrent_sequences=16,
    )
    loaded = load_engine(spec, data_dir, lambda _: None)
    assert loaded.report.context_tokens == context_tokens
    prompt = list(range(1, 41))
    answer = answer_of(loaded, prompt, context_tokens)
    assert len(prompt) + len(answer) == context_tokens


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"], ids=["torch", "native"])
def test_a_declared_context_is_a_claim_that_memory_bounds(
    tiny_model_dir: Path,
    data_dir: Path,
    tmp_path: Path,
    dtype: Literal["bfloat16", "float32"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Angles of sixteen million positions would take gigabytes."""
    shutil.copytree(tiny_model_dir, tmp_path / "claiming")
    path = tmp_path / "claiming" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": 2**24}))
    lengths: list[int] = []
    table_of = rope.rope_table

    def measured(config: ModelConfig, num_positions: int, *others: Any) -> rope.RopeTable:
        lengths.append(num_positions)
        return table_of(config, num_positions, *others)

    for user in (native_model, step):
        monkeypatch.setattr(user, "rope_table", measured)
    spec = cpu_spec(path.parent, dtype=dtype, kv_memory_bytes=4 * 1024**2)
    report = load_engine(spec, data_dir, lambda _: None).report
    assert 1000 < report.context_tokens <= max(lengths) < 30_000
    assert "bound by KV memory, the model's own are 16,777,216" in report.context_reason


def test_a_step_beyond_the_angles_is_refused_before_it_writes(llama: Pair) -> None:
    model, size = llama.model, llama.block_tokens
    num_blocks = CONTEXT_TOKENS // size + 1
    kv = model.new_kv(num_blocks, size)
    with pytest.raises(PositionError):
        model.forward(StepInput.of_sequence([0] * size, size, start=CONTEXT_TOKENS), kv)
    row = StepInput.of_decodes([0], [CONTEXT_TOKENS], block_table_of([range(num_blocks)]), size)
    with pytest.raises(PositionError):
        model.forward(row, kv)
    tensors = [kv.keys, kv.values] if hasattr(kv, "keys") else [x.entries for x in kv.layers]
    assert not any(bool(tensor.any()) for tensor in tensors)
    whole = StepInput.of_sequence([0] * CONTEXT_TOKENS, size)
    assert bool(model.forward(whole, kv).isfinite().all()), "up to them it is computed"

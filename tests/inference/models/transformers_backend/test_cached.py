"""Decoders that transformers computes with its own cache, over our blocks and state slots, against
transformers' own answers; and the inspection of such a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from inference.engine.load.load_engine import load_engine
from inference.loading.config.hub_config import parse_config
from inference.loading.embedding.embedding_config import check_directory_config
from inference.models.cache.kv_format import cache_layout, kv_bytes_per_token
from inference.models.families.transformers_types import ROW_BY_ROW_TYPES
from inference.models.registry import build_model
from inference.models.step_input import EMPTY_STATE, LONE_STATE, StepInput, block_table_of
from inference.models.transformers_backend.cached_model import CachedModel
from inference.models.transformers_backend.detection import detected_config
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import UnknownArchitectureError
from tests.cases import each_case
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS
from tests.inference.models.transformers_backend.cached_rows import cached_row
from tests.inference.models.transformers_backend.test_transformers_model import config_of

PLAIN, HYBRID, INDEXED, DELTA = "mpt", "jamba", "deepseek_v32", "olmo_hybrid"
OWN = ("minimax", "recurrent_gemma", "xlstm")
"""What keep states in forms of their own, beside ``rwkv``."""


def built(model_type: str, tmp_path: Path) -> tuple[PreTrainedModel, CachedModel]:
    """Opened as an operator would."""
    reference = parity.build_reference(cached_row(model_type))
    folder = parity.save_safetensors(reference, tmp_path / "model")
    opened = parity.opened(folder, tmp_path)
    model = build_model(opened.config, opened.weights, CONTEXT_TOKENS)
    opened.close()
    assert isinstance(model, CachedModel)
    return reference, model


@pytest.mark.parametrize("model_type", (PLAIN, INDEXED, "rwkv"))
def test_the_engine_answers_as_transformers_does(model_type: str, tmp_path: Path) -> None:
    parity.check_engine(*built(model_type, tmp_path))


def test_a_state_is_found_again_with_its_prefix(tmp_path: Path) -> None:
    reference, model = built(HYBRID, tmp_path)
    assert HYBRID in ROW_BY_ROW_TYPES and "row by row" in model.execution
    parity.check_prefix_hits(reference, model)


@pytest.mark.parametrize("model_type", OWN)
def test_a_state_of_a_form_of_its_own_is_found_again_with_its_prefix(
    model_type: str, tmp_path: Path
) -> None:
    reference, model = built(model_type, tmp_path)
    kept = model.config.module_cache
    assert kept is not None and {entry.kind for entry in kept.states} == {"own"}
    parity.check_prefix_hits(reference, model)


def test_memory_is_planned_by_what_the_cache_keeps() -> None:
    config = detected_config(parse_config(config_of(cached_row(HYBRID)), {}))
    # One layer of attention, whose two heads of keys and of values are 16 wide.
    assert kv_bytes_per_token(config, "fp32") == 2 * 2 * 16 * 4
    layout = cache_layout(config)
    assert layout.state_layers == (0,)
    # Of 128 channels: what a convolution over 4 looks back at, and 8 numbers.
    assert layout.state_bytes_per_slot == (128 * 4 + 128 * 8) * 4
    assert config.vocab_size == 96 and config.max_positions == CONTEXT_TOKENS


def test_an_indexers_keys_lie_in_blocks_as_well() -> None:
    config = detected_config(parse_config(config_of(cached_row(INDEXED)), {}))
    kept = config.module_cache
    assert (
        kept is not None and [entry.part for entry in kept.tokens] == ["attention", "indexer"] * 2
    )
    assert not kept.states


def test_entries_of_several_tokens_lie_in_blocks_as_well() -> None:
    config = detected_config(parse_config(config_of(cached_row("deepseek_v4")), {}))
    kept = config.module_cache
    assert kept is not None
    assert [(entry.layer, entry.part) for entry in kept.tokens] == [
        (0, "attention"),
        (1, "attention"),
        (1, "compressor"),
        (1, "indexer"),
        (2, "attention"),
        (2, "compressor"),
    ]
    # Groups of 4 keep a buffer and the last group's overlap, groups of 16 only the buffer.
    shapes = [(entry.layer, entry.kind, entry.shape) for entry in kept.states]
    assert (1, "buffer_kv", (4, 32)) in shapes and (1, "overlap_kv", (4, 16)) in shapes
    assert [shape for layer, _, shape in shapes if layer == 2] == [(16, 16)] * 2


@each_case("model_type", (HYBRID, "rwkv"))
def test_a_step_leaves_the_state_that_it_read(model_type: str, tmp_path: Path) -> None:
    _, model = built(model_type, tmp_path)
    storage = model.new_kv(4, parity.BLOCK_TOKENS, 4)
    tokens = parity.prompt_of(6, seed=1)
    model.forward(StepInput.of_sequence(tokens, parity.BLOCK_TOKENS), storage)
    states = list((storage.states_of(0) | storage.own_states()).values())
    before = [tensor[LONE_STATE].clone() for tensor in states]
    assert all(kept.any() for kept in before)
    step = StepInput.of_decodes(
        tokens[:1],
        [6],
        block_table_of([[0]]),
        parity.BLOCK_TOKENS,
        state_slots=([LONE_STATE], [2]),
    )
    first, again = (model.forward(step, storage) for _ in range(2))
    assert torch.equal(first, again)
    for tensor, kept in zip(states, before, strict=True):
        assert torch.equal(tensor[LONE_STATE], kept) and not torch.equal(tensor[2], kept)
        assert not tensor[EMPTY_STATE].any()


def test_what_transformers_does_not_build_is_refused_before_the_weights(
    tmp_path: Path,
) -> None:
    config = config_of(cached_row("gptj")) | {"n_head": 5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnknownArchitectureError, match="transformers builds no 'gptj' of this"):
        check_directory_config(tmp_path)


def test_a_whole_load(tmp_path: Path) -> None:
    reference = parity.build_reference(cached_row(DELTA))
    folder = parity.save_safetensors(reference, tmp_path / "model")
    spec = LoadSpec(
        job_id="1", model="m", source=f"path:{folder}", dtype="float32", max_concurrent_sequences=2
    )
    loaded = load_engine(spec, tmp_path / "data", lambda progress: None)
    report: Any = loaded.report
    assert report.architecture == DELTA
    assert "OlmoHybridForCausalLM with its own cache" in report.compiled
    assert "much slower" in report.compiled
    assert "states of 2 sequences" in report.context_reason
    assert loaded.sleeper is not None
    loaded.sleeper.fall_asleep()
    loaded.sleeper.wake()  # which runs its first steps

"""Decoders that transformers computes itself, behind our paged attention, against transformers'
own answers; and those that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from inference.engine.load.load_engine import load_engine
from inference.loading.hub_config import check_directory_config, parse_config
from inference.loading.loader import OpenedModel
from inference.models.errors import MissingWeightsError, UnsupportedModuleError
from inference.models.families.registry import FAMILIES, check_architecture
from inference.models.families.transformers_types import (
    CACHED_TYPES,
    NESTED_TYPES,
    PAGED_TYPES,
    REFUSED_TYPES,
    ROW_BY_ROW_TYPES,
)
from inference.models.kv_format import cache_layout, kv_bytes_per_token
from inference.models.registry import build_fastest_model, build_model
from inference.models.step_input import EMPTY_STATE, LONE_STATE, StepInput, block_table_of
from inference.models.transformers_backend.cached_model import CachedModel
from inference.models.transformers_backend.detection import detected_config
from inference.models.transformers_backend.inspection import inspect
from inference.models.transformers_backend.model import TransformersModel, inspect_config
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError, UnknownArchitectureError
from tests.inference.loading.conftest import edit_json, opened
from tests.inference.models.dense_weights import DenseWeights
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS, Row
from tests.inference.models.transformers_backend.small_rows import small_row

OPT = small_row("opt")
"""Learned positions, and scores that are not scaled."""
NEOX = small_row("gpt_neox")
"""Parallel layers, one fused projection, a part of each head rotated."""
LAYERS = ["sliding_attention"] * 3 + ["full_attention"]
WINDOWS = small_row("ministral", num_hidden_layers=4, layer_types=LAYERS)
NARROW = small_row("youtu")
"""Values narrower than keys."""
ROWS = (OPT, NEOX, WINDOWS, NARROW, small_row("solar_open", first_k_dense_replace=1))


def saved(row: Row, tmp_path: Path) -> tuple[PreTrainedModel, Path]:
    reference = parity.build_reference(row)
    return reference, parity.save_safetensors(reference, tmp_path / "model")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.model_type)
def test_the_engine_answers_as_transformers_does(row: Row, tmp_path: Path) -> None:
    reference, folder = saved(row, tmp_path)
    model = parity.opened(folder, tmp_path)
    built = build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()
    assert isinstance(built, TransformersModel)
    parity.check_batch_mates(reference, built)
    if row.model_type == "ministral":  # with and without windows: the others' are stored alike
        parity.check_preemption(reference, built)
        parity.check_prefix_hits(reference, built)


def config_of(row: Row) -> dict[str, Any]:
    """config.json, parsed."""
    config = AutoConfig.for_model(row.model_type, **row.sizes)
    return json.loads(config.to_json_string(use_diff=False))


def test_what_config_json_gives_away_is_refused_by_name() -> None:
    config = config_of(NEOX)
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    long = {"sliding_attention": {"rope_type": "longrope"}}
    refusals = {
        "'linear_attention' are not supported": {"layer_types": ["linear_attention"] * 2},
        "rope scaling 'dynamic' is not supported": {"rope_parameters": dynamic},
        "rope scaling 'longrope' is not supported": {"rope_parameters": long},
        "models with an encoder are not supported": {"is_encoder_decoder": True},
        "quantised with 'gptq'": {"quantization_config": {"quant_method": "gptq"}},
        "vocab_size is None": {"vocab_size": None},
    }
    for words, changes in refusals.items():
        with pytest.raises(BadFileError, match=words):
            parse_config(config | changes, {})
    words = "'reformer', which keeps other keys and values"
    with pytest.raises(UnknownArchitectureError, match=words) as refusal:
        check_architecture("reformer")
    assert "docs/models.md" in str(refusal.value)


def test_every_decoder_of_transformers_is_ours_runs_or_is_refused_by_name() -> None:
    own = {name for family in FAMILIES for name in family.model_types}
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    run = {*PAGED_TYPES, *CACHED_TYPES, *NESTED_TYPES}
    assert known - own == (run | REFUSED_TYPES.keys()) - own
    assert not run & REFUSED_TYPES.keys() and not set(PAGED_TYPES) & set(CACHED_TYPES)


def test_what_the_module_computes_otherwise_is_refused() -> None:
    """Masks by another rule, and other heads than memory was planned for."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 32, "head_dim": 16}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_chunk_size": 8}
    sizes |= {"vocab_size": 96, "intermediate_size_mlp": 32, "num_local_experts": 2}
    with torch.device("meta"):
        config = AutoConfig.for_model("llama4_text", **sizes)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedModuleError, match="by a rule other than causal"):
        inspect(model)
    planned = replace(parse_config(config_of(NEOX), {}), num_kv_heads=2)
    weights = DenseWeights({}, torch.float32, torch.device("cpu"))
    with pytest.raises(UnsupportedModuleError, match=r"read as 4 heads over 2 .* in every layer"):
        TransformersModel(planned, weights, CONTEXT_TOKENS, "fp32")


def test_files_that_hold_less_or_more_than_the_module(tmp_path: Path) -> None:
    """And the load report has the bytes, and reports that it is slower. Code that lies beside the
    weights is not run."""

    def loaded() -> tuple[OpenedModel, str]:
        model = parity.opened(folder, tmp_path)
        _, execution = build_fastest_model(model.config, model.weights, CONTEXT_TOKENS, tmp_path)
        model.close()
        return model, execution

    _, folder = saved(NEOX, tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    own = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    edit_json(folder / "config.json", auto_map=own)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    model, execution = loaded()
    assert execution.startswith("transformers' GPTNeoXForCausalLM behind paged attention: slower")
    assert model.weights.report() == "28 x F32 dense"
    assert model.weight_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert not (tmp_path / "ran").exists()
    known = {"gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool)}
    save_file(tensors | known, path)
    assert "passed over" not in loaded()[1]
    names = [f"gpt_neox.layers.{i}.attention.q_norm.weight" for i in range(5)]
    save_file(tensors | known | {name: torch.ones(16) for name in names}, path)
    passed_over = f"; passed over, as it has no place for them: {', '.join(names[:3])} and 2 more"
    assert loaded()[1].endswith(passed_over)
    save_file(tensors | {"table": torch.tensor([2**40 + 1])}, path)
    for asked in ({}, {"quantization": "none"}):
        model = opened(folder, tmp_path, **asked)
        assert model.weights.all_tensors()["table"].tolist() == [2**40 + 1], "it is not rounded"
        assert "1 x I64 as it is" in model.weights.report()
        model.close()
    with pytest.raises(BadSourceError, match="q4 is not built for gpt_neox"):
        opened(folder, tmp_path, quantization="q4")
    del tensors["gpt_neox.final_layer_norm.weight"]
    save_file(tensors, path)
    with pytest.raises(MissingWeightsError, match=r"lack gpt_neox\.final_layer_norm\.weight"):
        loaded()


@pytest.mark.parametrize("row", [OPT, small_row("olmo_hybrid")], ids=["paged", "cached"])
def test_a_whole_load(row: Row, tmp_path: Path) -> None:
    _, folder = saved(row, tmp_path)
    asked = {"dtype": "float32", "max_concurrent_sequences": 2}
    spec = LoadSpec(job_id="1", model="m", source=f"path:{folder}", **asked)
    loaded = load_engine(spec, tmp_path / "data", lambda progress: None)
    report: Any = loaded.report
    assert report.architecture == row.model_type and report.context_tokens == CONTEXT_TOKENS
    if row is OPT:
        assert "OPTForCausalLM" in report.compiled
    else:
        assert "OlmoHybridForCausalLM with its own cache" in report.compiled
        assert "much slower" in report.compiled and "states of 2 sequences" in report.context_reason
    loaded.sleeper.fall_asleep()
    loaded.sleeper.wake()  # which runs its first steps


PLAIN, HYBRID, INDEXED = "mpt", "jamba", "deepseek_v32"
OWN = ("minimax", "recurrent_gemma", "xlstm")
"""What keep states in forms of their own, beside ``rwkv``."""


def built(model_type: str, tmp_path: Path) -> tuple[PreTrainedModel, CachedModel]:
    """Opened as an operator would."""
    reference = parity.build_reference(small_row(model_type))
    folder = parity.save_safetensors(reference, tmp_path / "model")
    opened = parity.opened(folder, tmp_path)
    model = build_model(opened.config, opened.weights, CONTEXT_TOKENS)
    opened.close()
    assert isinstance(model, CachedModel)
    return reference, model


@pytest.mark.parametrize("model_type", (PLAIN, INDEXED, "rwkv", HYBRID, *OWN))
def test_the_engine_answers_over_a_cache_of_its_own(model_type: str, tmp_path: Path) -> None:
    """A state is found again with its prefix, and a step leaves the one that it read."""
    reference, model = built(model_type, tmp_path)
    kept = model.config.module_cache
    if model_type in (PLAIN, INDEXED, "rwkv"):
        parity.check_batch_mates(reference, model)
        parity.check_preemption(reference, model)
    parity.check_prefix_hits(reference, model)
    if model_type == HYBRID:
        assert HYBRID in ROW_BY_ROW_TYPES and "row by row" in model.execution
    elif model_type in OWN:
        assert {entry.kind for entry in kept.states} == {"own"}
    if model_type not in (HYBRID, "rwkv"):
        return
    storage = model.new_kv(4, parity.BLOCK_TOKENS, 4)
    tokens = parity.prompt_of(6, seed=1)
    model.forward(StepInput.of_sequence(tokens, parity.BLOCK_TOKENS), storage)
    states = list((storage.states_of(0) | storage.own_states()).values())
    before = [tensor[LONE_STATE].clone() for tensor in states]
    assert all(kept.any() for kept in before)
    given = tokens[:1], [6], block_table_of([[0]]), parity.BLOCK_TOKENS
    step = StepInput.of_decodes(*given, state_slots=([LONE_STATE], [2]))
    first, again = (model.forward(step, storage) for _ in range(2))
    assert torch.equal(first, again)
    for tensor, kept in zip(states, before, strict=True):
        assert torch.equal(tensor[LONE_STATE], kept) and not torch.equal(tensor[2], kept)
        assert not tensor[EMPTY_STATE].any()


def test_memory_is_planned_by_what_the_cache_keeps() -> None:
    calls = inspect_config(parse_config(config_of(WINDOWS), {}))
    assert [call.window for call in calls] == [20, 20, 20, None]
    latent = inspect_config(parse_config(config_of(NARROW), {}))
    heads = {(c.num_heads, c.num_kv_heads, c.head_dim, c.value_dim) for c in (*calls, *latent)}
    assert heads == {(4, 2, 16, 16), (4, 4, 24, 16)}
    config = detected_config(parse_config(config_of(small_row(HYBRID)), {}))
    # One layer of attention, whose two heads of keys and of values are 16 wide.
    assert kv_bytes_per_token(config, "fp32") == 2 * 2 * 16 * 4
    layout = cache_layout(config)
    assert layout.state_layers == (0,)
    # Of 128 channels: what a convolution over 4 looks back at, and 8 numbers.
    assert layout.state_bytes_per_slot == (128 * 4 + 128 * 8) * 4
    assert config.vocab_size == 96 and config.max_positions == CONTEXT_TOKENS
    kept = detected_config(parse_config(config_of(small_row(INDEXED)), {})).module_cache
    assert kept is not None and not kept.states
    assert [entry.part for entry in kept.tokens] == ["attention", "indexer"] * 2
    # Groups of several tokens lie in blocks as well.
    kept = detected_config(parse_config(config_of(small_row("deepseek_v4")), {})).module_cache
    assert [(entry.layer, entry.part) for entry in kept.tokens] == [
        *((0, "attention"), (1, "attention"), (1, "compressor"), (1, "indexer")),
        *((2, "attention"), (2, "compressor")),
    ]
    # Groups of 4 keep a buffer and the last group's overlap, groups of 16 only the buffer.
    shapes = [(entry.layer, entry.kind, entry.shape) for entry in kept.states]
    assert (1, "buffer_kv", (4, 32)) in shapes and (1, "overlap_kv", (4, 16)) in shapes
    assert [shape for layer, _, shape in shapes if layer == 2] == [(16, 16)] * 2


def test_what_transformers_does_not_build_is_refused_before_the_weights(tmp_path: Path) -> None:
    config = config_of(small_row("gptj")) | {"n_head": 5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnknownArchitectureError, match="transformers builds no 'gptj' of this"):
        check_directory_config(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [*PAGED_TYPES, *CACHED_TYPES])
def test_every_listed_decoder(model_type: str, tmp_path: Path) -> None:
    """Which is what puts a name into ``transformers_types.py``."""
    is_paged = model_type in PAGED_TYPES
    reference = parity.build_reference(small_row(model_type))
    reference.save_pretrained(tmp_path)
    kind = TransformersModel if is_paged else CachedModel
    tensors = load_file(tmp_path / "model.safetensors")
    weights = DenseWeights(tensors, torch.float32, torch.device("cpu"))
    config = parse_config(json.loads((tmp_path / "config.json").read_bytes()), {})
    parity.check_engine(reference, kind(config, weights, CONTEXT_TOKENS, "fp32"))


TOWERS: dict[str, dict[str, Any]] = {
    "gemma4_unified": {},
    "qwen4_exp": {
        "vision_config": {"hidden_size": 32, "intermediate_size": 64, "depth": 1, "num_heads": 2}
        | {"out_hidden_size": 64, "num_position_embeddings": 16}
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TOWERS)
def test_a_text_model_beside_a_tower_is_read_as_such(model_type: str, tmp_path: Path) -> None:
    is_tied = {"tie_word_embeddings": model_type == "gemma4_unified"}
    text = small_row(NESTED_TYPES[model_type]).sizes | is_tied
    config = AutoConfig.for_model(model_type, text_config=text, **TOWERS[model_type], **is_tied)
    torch.manual_seed(7)
    reference = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    found = parity.opened(parity.save_safetensors(reference, tmp_path / "m"), tmp_path)
    model = build_model(found.config, found.weights, CONTEXT_TOKENS)
    found.close()
    assert ("tensors of images left out" in found.left_out) == bool(TOWERS[model_type])
    parity.check_prefix_hits(reference, model)

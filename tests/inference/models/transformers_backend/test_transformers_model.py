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
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from inference.engine.load.load_engine import load_engine
from inference.loading.config.hub_config import parse_config
from inference.models.errors import MissingWeightsError, UnsupportedModuleError
from inference.models.families.registry import FAMILIES, check_architecture
from inference.models.families.transformers_types import (
    CACHED_TYPES,
    NESTED_TYPES,
    PAGED_TYPES,
    REFUSED_TYPES,
)
from inference.models.registry import build_fastest_model, build_model
from inference.models.transformers_backend.inspection import inspect
from inference.models.transformers_backend.model import TransformersModel, inspect_config
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError, UnknownArchitectureError
from inference.protocol.load_report import LoadReport
from tests.inference.loading.conftest import opened
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS, Row
from tests.inference.models.transformers_backend.cached_rows import LATENT, ROUTED

ROWS = (
    # Learned positions, and scores that are not scaled.
    Row(
        model_type="opt",
        config={"ffn_dim": 96, "word_embed_proj_dim": 64, "num_key_value_heads": 4},
    ),
    # Parallel layers, one fused projection, a part of each head rotated.
    Row(model_type="gpt_neox", config={"num_key_value_heads": 4}),
    # Layers within a window among others.
    Row(
        model_type="ministral",
        config={
            "num_hidden_layers": 4,
            "sliding_window": 20,
            "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        },
    ),
    # Values narrower than keys.
    Row(model_type="youtu", config=LATENT),
    # Experts that files hold one by one.
    Row(model_type="solar_open", config=ROUTED),
)


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


def test_the_load_report_reports_that_it_is_slower(tmp_path: Path) -> None:
    _, folder = saved(ROWS[1], tmp_path)
    model = parity.opened(folder, tmp_path)
    _, execution = build_fastest_model(model.config, model.weights, CONTEXT_TOKENS, tmp_path)
    model.close()
    assert execution.startswith("transformers' GPTNeoXForCausalLM behind paged attention: slower")
    assert model.weights.report() == "28 x F32 dense"
    assert model.weight_bytes == sum(
        tensor.nbytes for tensor in load_file(folder / "model.safetensors").values()
    )


def test_layers_see_as_far_as_the_module_reports() -> None:
    config = parse_config(config_of(ROWS[2]), {})
    calls = inspect_config(config)
    assert [call.window for call in calls] == [20, 20, 20, None]
    assert {(c.num_heads, c.num_kv_heads, c.head_dim, c.value_dim) for c in calls} == {
        (4, 2, 16, 16)
    }
    latent = inspect_config(parse_config(config_of(ROWS[3]), {}))
    assert {(c.num_kv_heads, c.head_dim, c.value_dim) for c in latent} == {(4, 24, 16)}


def config_of(row: Row) -> dict[str, Any]:
    """config.json, parsed."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(row.model_type, **row.sizes)
    return json.loads(config.to_json_string(use_diff=False))


def test_what_config_json_gives_away_is_refused_by_name() -> None:
    config = config_of(ROWS[1])
    refusals = {
        "'linear_attention' are not supported": {"layer_types": ["linear_attention"] * 2},
        "rope scaling 'dynamic' is not supported": {
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
        },
        "rope scaling 'longrope' is not supported": {
            "rope_parameters": {"sliding_attention": {"rope_type": "longrope"}}
        },
        "models with an encoder are not supported": {"is_encoder_decoder": True},
        "quantised with 'gptq'": {"quantization_config": {"quant_method": "gptq"}},
        "vocab_size is None": {"vocab_size": None},
    }
    for words, changes in refusals.items():
        with pytest.raises(BadFileError, match=words):
            parse_config(config | changes, {})


def test_keys_of_another_kind_are_refused_and_what_runs_is_named() -> None:
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


def test_masks_by_another_rule_are_refused() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "llama4_text",
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=32,
        head_dim=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_chunk_size=8,
        vocab_size=96,
        intermediate_size_mlp=32,
        num_local_experts=2,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedModuleError, match="by a rule other than causal"):
        inspect(model)


def test_other_heads_than_memory_was_planned_for_are_refused() -> None:
    from tests.inference.models.dense_weights import DenseWeights

    config = replace(parse_config(config_of(ROWS[1]), {}), num_kv_heads=2)
    weights = DenseWeights({}, torch.float32, torch.device("cpu"))
    with pytest.raises(UnsupportedModuleError, match=r"read as 4 heads over 2 .* in every layer"):
        TransformersModel(config, weights, CONTEXT_TOKENS, "fp32")


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    _, folder = saved(ROWS[1], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["gpt_neox.final_layer_norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    model = parity.opened(folder, tmp_path)
    with pytest.raises(MissingWeightsError, match=r"lack gpt_neox\.final_layer_norm\.weight"):
        build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()


def test_tensors_that_the_module_has_no_place_for_are_named(tmp_path: Path) -> None:
    _, folder = saved(ROWS[1], tmp_path)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    known = {"gpt_neox.layers.0.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool)}
    save_file(tensors | known, path)
    assert "passed over" not in execution_of(folder, tmp_path)
    strange = {f"gpt_neox.layers.{i}.attention.q_norm.weight": torch.ones(16) for i in range(5)}
    save_file(tensors | known | strange, path)
    assert execution_of(folder, tmp_path).endswith(
        "; passed over, as it has no place for them: gpt_neox.layers.0.attention.q_norm.weight, "
        "gpt_neox.layers.1.attention.q_norm.weight, gpt_neox.layers.2.attention.q_norm.weight and "
        "2 more"
    )


def test_integers_of_a_module_are_not_rounded(tmp_path: Path) -> None:
    _, folder = saved(ROWS[1], tmp_path)
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"table": torch.tensor([2**40 + 1])}, path)
    for asked in ({}, {"quantization": "none"}):
        model = opened(folder, tmp_path, **asked)
        assert model.weights.all_tensors()["table"].tolist() == [2**40 + 1]
        assert "1 x I64 as it is" in model.weights.report()
        model.close()


def execution_of(folder: Path, tmp_path: Path) -> str:
    model = parity.opened(folder, tmp_path)
    _, execution = build_fastest_model(model.config, model.weights, CONTEXT_TOKENS, tmp_path)
    model.close()
    return execution


def test_quantising_while_loading_is_refused(tmp_path: Path) -> None:
    _, folder = saved(ROWS[1], tmp_path)
    with pytest.raises(BadSourceError, match="q4 is not built for gpt_neox"):
        opened(folder, tmp_path, quantization="q4")


def test_code_that_lies_beside_the_weights_is_not_run(tmp_path: Path) -> None:
    _, folder = saved(ROWS[1], tmp_path)
    config = json.loads((folder / "config.json").read_bytes())
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    model = parity.opened(folder, tmp_path)
    build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()
    assert not (tmp_path / "ran").exists()


def test_a_whole_load(tmp_path: Path) -> None:
    _, folder = saved(ROWS[0], tmp_path)
    spec = LoadSpec(
        job_id="1", model="m", source=f"path:{folder}", dtype="float32", max_concurrent_sequences=4
    )
    loaded = load_engine(spec, tmp_path / "data", lambda progress: None)
    report: LoadReport = loaded.report
    assert report.architecture == "opt" and "OPTForCausalLM" in report.compiled
    assert report.context_tokens == CONTEXT_TOKENS
    assert loaded.sleeper is not None
    loaded.sleeper.fall_asleep()
    loaded.sleeper.wake()  # which runs its first steps

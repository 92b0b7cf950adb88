"""A metadata key that changes numbers is honoured, or the file is refused by its name."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from gguf.constants import Keys

from inference.models.config import ModelConfig, RopeScaling
from inference.models.families.gguf_keys import GGUFKeys
from inference.models.families.gguf_numbers import COMPUTED, read_gguf
from inference.models.families.registry import FAMILIES, check_gguf_architecture
from inference.models.families.transformers_modules import (
    MODULES,
    added_by_metadata,
    check_module_keys,
)
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.models.dense_weights import TINY

NUM_LAYERS = 8
SIZES: dict[str, Any] = {
    "block_count": NUM_LAYERS,
    "context_length": 4096,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "rope.scaling.original_context_length": 2048,
}
STATES = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "rope.dimension_count": 4,
}
OWN: dict[str, dict[str, Any]] = {
    "deepseek2": {
        "attention.kv_lora_rank": 32,
        "attention.key_length": 24,
        "attention.value_length": 16,
        "rope.dimension_count": 8,
    },
    "gpt-oss": {"expert_count": 4, "expert_feed_forward_length": 32, "attention.sliding_window": 8},
    "granitehybrid": STATES | {"rope.dimension_count": 16, "rope.scaling.finetuned": True},
    "lfm2moe": {"expert_gating_func": 2},
    "qwen35": STATES,
    "qwen35moe": STATES,
    "qwen3next": STATES,
}
MIXTURES = {
    *("deepseek2", "dots1", "ernie4_5-moe", "glm4moe", "gpt-oss", "hunyuan-moe", "lfm2moe"),
    *("llama4", "minimax-m2", "olmoe", "qwen2moe", "qwen35moe", "qwen3moe", "qwen3next"),
    *("qwen3vlmoe", "llama with experts", "granitehybrid with experts"),
}
ARCHITECTURES = sorted(
    {name for family in FAMILIES for name in family.gguf_architectures} | MIXTURES
)

UNREAD = {
    # Another number than the tensors' shapes have makes a file that cannot be read.
    *("vocab_size", "context_length", "embedding_length", "embedding_length_out"),
    *("features_length", "block_count", "leading_dense_block_count", "feed_forward_length"),
    *("expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_shared_count"),
    *("interleave_moe_layer_step", "attention.head_count", "attention.head_count_kv"),
    *("attention.key_length", "attention.value_length", "attention.key_length_mla"),
    *("attention.value_length_mla", "attention.key_length_swa", "attention.value_length_swa"),
    *("attention.q_lora_rank", "attention.kv_lora_rank", "ssm.conv_kernel", "ssm.inner_size"),
    *("ssm.state_size", "ssm.time_step_rank", "ssm.group_count", "shortconv.l_cache"),
    # Of other architectures.
    *("expert_chunk_feed_forward_length", "experts_per_group", "moe_every_n_layers"),
    *("decoder_start_token_id", "decoder_block_count", "rescale_every_n_layers"),
    *("time_mix_extra_dim", "time_decay_extra_dim", "token_shift_count", "altup.active_idx"),
    *("altup.num_inputs", "embedding_length_per_layer_input", "{dense}_feat_in"),
    *("{dense}_feat_out", "attention.group_norm_epsilon", "attention.group_norm_groups"),
    *("attention.decay_lora_rank", "attention.iclr_lora_rank", "attention.gate_lora_rank"),
    *("attention.value_residual_mix_lora_rank", "attention.relative_buckets_count"),
    *("kda.head_dim", "wkv.head_size", "posnet.embedding_length", "posnet.block_count"),
    *("convnext.embedding_length", "convnext.block_count", "classifier.output_labels"),
    *("attention.indexer.head_count", "attention.indexer.key_length"),
    # Without effect: of llama's first converter, of embeddings, and of images.
    *("tensor_data_layout", "pooling_type", "n_deepstack_layers", "rope.dimension_sections"),
}
MATTERS: dict[str, Any] = {
    "attention.causal": False,
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [index % 3 == 0 for index in range(NUM_LAYERS)],
    "expert_count": 3,
    "expert_group_count": 2,
    "expert_used_count": 1,
    "expert_weights_norm": None,
    "expert_gating_func": None,
    "full_attention_interval": 2,
    "nextn_predict_layers": 1,
    "rope.dimension_count": 2,
    "rope.dimension_count_swa": 2,
    "rope.scaling.type": "yarn",
    "ssm.dt_b_c_rms": True,
    "swin_norm": True,
    "use_parallel_residual": None,
}
"""A value of each key that changes numbers; a key that is not here is set to 4. ``None``: each of
its values is tried."""
SCALED = {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}
EACH_VALUE: dict[str, list[Any]] = {
    "expert_weights_norm": [True, False],
    "expert_gating_func": [1, 2, 3, 4],
    "use_parallel_residual": [True, False],
}


def keys_of(given: str, **changes: Any) -> GGUFKeys:
    """``changes``: by names without the architecture's."""
    architecture, _, experts = given.partition(" with ")
    values = SIZES | OWN.get(architecture, {})
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (100, 64),
        "blk.0.attn_k.weight": (32, 64),
    }
    if architecture in MIXTURES or experts:
        values |= {"expert_count": 4, "expert_used_count": 2} | OWN.get(architecture, {})
        for index in range(NUM_LAYERS):
            shapes[f"blk.{index}.ffn_down_exps.weight"] = (4, 64, 32)
    if architecture == "granitehybrid":
        shapes["blk.1.ssm_in.weight"] = (1, 1)
    values |= changes
    metadata = {f"{architecture}.{key}": value for key, value in values.items()}
    return GGUFKeys({"general.architecture": architecture} | metadata, architecture, shapes)


def read(architecture: str, **changes: Any) -> ModelConfig:
    keys = keys_of(architecture, **changes)
    return read_gguf(check_gguf_architecture(keys.architecture), keys)


ROPE_SCALING = {
    *("rope.scale_linear", "rope.scaling.alpha", "rope.scaling.attn_factor"),
    *("rope.scaling.factor", "rope.scaling.finetuned", "rope.scaling.original_context_length"),
    *("rope.scaling.type", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast"),
    *("rope.scaling.yarn_beta_slow", "rope.scaling.yarn_ext_factor"),
    "rope.scaling.yarn_log_multiplier",
}
"""The keys that ``gguf_keys.rope_scaling`` honours or refuses, and Granite's for no rotation."""


def test_every_key_of_the_format_is_accounted_for_once() -> None:
    classes = [Keys.LLM, Keys.Attention, Keys.Attention.Indexer, Keys.Rope, Keys.SSM, Keys.KDA]
    classes += [Keys.WKV, Keys.PosNet, Keys.ConvNext, Keys.Classifier, Keys.ShortConv]
    values = [value for one in classes for value in vars(one).values() if isinstance(value, str)]
    declared = {one.removeprefix("{arch}.") for one in values if one.startswith("{arch}.")}
    accounted = [*COMPUTED, *ROPE_SCALING, *UNREAD]
    assert len(accounted) == len(set(accounted))
    assert declared <= set(accounted)


@each_case("architecture", ARCHITECTURES)
def test_no_key_that_matters_is_dropped(architecture: str) -> None:
    for key in (*COMPUTED, *ROPE_SCALING):
        values = EACH_VALUE.get(key, [MATTERS.get(key, 4)])
        if all(passes_unread(architecture, key, value) for value in values):
            assert is_of_no_matter(architecture, key), (key, values)


def passes_unread(architecture: str, key: str, value: Any) -> bool:
    others = SCALED if key.startswith("rope.scaling.") and key not in SCALED else {}
    try:
        after = read(architecture, **others | {key: value})
    except BadFileError as error:
        assert key in str(error), (key, str(error))
        return False
    return after == reference(architecture, is_scaled=bool(others))


@cache
def reference(architecture: str, *, is_scaled: bool) -> ModelConfig:
    return read(architecture, **(SCALED if is_scaled else {}))


def is_of_no_matter(architecture: str, key: str) -> bool:
    """Whether the model has nothing of the kind."""
    if key == "rope.scaling.finetuned":
        return True
    config, keys = read(architecture), keys_of(architecture)
    return key in COMPUTED and COMPUTED[key](config, keys) is None


LISTED = [True, False, False, True] * 2
LINEAR = RopeScaling(kind="linear", factor=4.0, original_max_positions=2048)
OF_0 = dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale"), 0.0)


GEMMA3 = {"rope.freq_base_swa": 5e5, "attention.sliding_window_pattern": 2}
ROOT = pytest.approx(128**-0.5, rel=1e-6)
"""Of 1 / 128, which a file has in float32."""
READ: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {"rope.scale_linear": 4.0}, {"rope_scaling": LINEAR}),
    ("llama", {"rope.scaling.factor": 4.0}, {"rope_scaling": LINEAR}),
    ("llama", {"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, {"rope_scaling": LINEAR}),
    ("llama", {"rope.scaling.type": "linear", "rope.scale_linear": 4.0}, {"rope_scaling": LINEAR}),
    ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {"rope_scaling": None}),
    ("llama", {"rope.scaling.factor": 0.0}, {"rope_scaling": None}),
    ("llama", {"rope.scaling.factor": 1.0}, {"rope_scaling": None}),
    ("gemma3", GEMMA3, {"sliding_rope_theta": 5e5, "mixers": ("sliding", "attention") * 4}),
    ("granite", {}, {"mixer_kinds": ("attention",) * NUM_LAYERS}),
    ("granite", {"rope.scaling.finetuned": False}, {"mixer_kinds": ("unrotated",) * NUM_LAYERS}),
    ("granite", OF_0, {"logit_multiplier": 1.0, "residual_multiplier": 1.0}),
    ("granite", OF_0, {"embedding_multiplier": 1.0}),
    ("llama", {"final_logit_softcapping": 30.0}, {"logit_soft_cap": 30.0}),
    ("llama", {"attention.scale": 0.5}, {"attention_scale": 0.5}),
    ("llama", {"residual_scale": 0.25}, {"residual_multiplier": 0.25}),
    (
        "gemma3",
        {"attention.key_length": 128, "attention.scale": 0.0883883},
        {"attention_scale": ROOT},
    ),
]


@each_case(("architecture", "given", "expected"), READ, ids=str)
def test_what_is_read(architecture: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    config = read(architecture, **given)
    assert {name: getattr(config, name) for name in expected} == expected


@each_case("architecture", ["cohere2", "exaone4", "gemma2", "gpt-oss", "olmo2"])
def test_the_places_of_sliding_layers_are_the_files(architecture: str) -> None:
    given = {"attention.sliding_window": 8, "attention.sliding_window_pattern": LISTED}
    assert [kind == "sliding" for kind in read(architecture, **given).mixers] == LISTED


@each_case(
    ("given", "divisors", "message"),
    [
        ({"rope.scaling.attn_factor": 1.2}, None, "attn_factor"),
        ({"rope.scaling.type": "none", "rope.scaling.attn_factor": 1.2}, None, "attn_factor"),
        ({"rope.scaling.alpha": 1000.0}, None, "rope.scaling.alpha"),
        ({"rope.scaling.yarn_ext_factor": 0.5}, None, "yarn_ext_factor"),
        ({"rope.scaling.type": "longrope"}, None, "longrope"),
        ({"rope.scaling.factor": 4.0}, [1.0] * 8, r"rope\.scaling"),
        ({"rope.scaling.type": "yarn"}, [1.0] * 8, r"rope\.scaling"),
    ],
    ids=str,
)
def test_rope_scaling_that_is_not_computed_is_refused(
    given: dict[str, Any], divisors: list[float] | None, message: str
) -> None:
    keys = replace(keys_of("llama", **given), rope_divisors=divisors)
    with pytest.raises(BadFileError, match=message):
        read_gguf(check_gguf_architecture("llama"), keys)


PLAIN = replace(
    TINY,
    architecture="a module",
    num_layers=NUM_LAYERS,
    max_positions=4096,
    rms_norm_eps=0.0,
    rope_theta=0.0,
)
PASSED_OVER = {
    "rope.scaling.factor": 4.0,
    "rope.scale_linear": 4.0,
    "rope.scaling.type": "longrope",
    "rope.scaling.attn_factor": 2.0,
    "logit_scale": 4.0,
    "attention.scale": 4.0,
    "attention.clamp_kqv": 4.0,
    "attention.sliding_window": 16,
    "attention.causal": False,
    "residual_scale": 4.0,
    "embedding_scale": 4.0,
    "final_logit_softcapping": 4.0,
    "ssm.dt_b_c_rms": True,
    "use_parallel_residual": True,
}


@each_case("architecture", sorted(MODULES))
def test_what_transformers_reader_passes_over_is_refused(architecture: str) -> None:
    check_module_keys(keys_of(architecture), PLAIN)
    for key, value in PASSED_OVER.items():
        keys = keys_of(architecture, **{key: value})
        if (architecture, key) == ("stablelm", "use_parallel_residual"):
            assert added_by_metadata(keys)[key] is True
            continue
        with pytest.raises(BadFileError, match="longrope" if "type" in key else re.escape(key)):
            check_module_keys(keys, PLAIN)

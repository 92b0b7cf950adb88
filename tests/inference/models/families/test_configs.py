"""config.json as families read it: published models', the tensors that these must hold, and what is
refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from copy import deepcopy
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from inference.loading.hub_config import parse_config
from inference.models.families.family import Family
from inference.models.families.gemma import layer_kv
from inference.models.families.registry import (
    FAMILIES,
    check_architecture,
    check_gguf_architecture,
    family_of,
)
from inference.models.families.tower import TOWER
from inference.models.kv_format import (
    KVFormat,
    cache_layout,
    kv_bytes_of_layer,
    kv_bytes_per_token,
)
from inference.models.layer_configs import state_bytes
from inference.models.transformers_backend.model import inspect_config
from inference.protocol.load_errors import BadFileError, UnknownArchitectureError
from tests.cases import each_case
from tests.inference.models.families import tiny_gguf
from tests.inference.models.families.latent_gguf import V2, V3
from tests.inference.models.families.mixtures import QWEN3
from tests.inference.models.families.rows import LLAMA4, SIZES

Facts = dict[str, Any]
PUBLISHED: dict[str, Facts] = json.loads((Path(__file__).parent / "published.json").read_bytes())
QWEN3_VL_TOWER: Facts = PUBLISHED["qwen3-vl-8b"]["vision_config"]
QWEN3_5_TOWER = {"out_hidden_size": 5120, "deepstack_visual_indexes": []}
QWEN3_5 = PUBLISHED["qwen3.5-27b"] | {
    "image_token_id": 248056,
    "vision_config": QWEN3_VL_TOWER | QWEN3_5_TOWER,
}
GEMMA4 = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 15,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_kv_shared_layers": 5,
        "hidden_size": 1536,
        "intermediate_size": 6144,
    },
}
"""Facts of gemma-4-E2B's config.json, with fewer layers."""
FEW = {"n_routed_experts": 6, "num_experts_per_tok": 2}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
BASES: dict[str, Facts] = PUBLISHED | {
    "qwen3.5, with its tower": QWEN3_5,
    "gemma 4": GEMMA4,
    "deepseek v2": SIZES | V2 | {"model_type": "deepseek_v2"},
    "deepseek v3": SIZES | V3 | {"model_type": "deepseek_v3"},
    "llama 4": SIZES | LLAMA4 | {"model_type": "llama4_text"},
    "qwen3_moe": SIZES | QWEN3 | {"model_type": "qwen3_moe"},
    "glm 4.5, few experts": PUBLISHED["glm-4.5-air"] | FEW,
}


@each_case("name", [*PUBLISHED, "qwen3.5, with its tower"])
def test_the_declared_tensors_are_the_models(name: str) -> None:
    """The first layers are compared: the others are like them."""
    facts = changed(BASES[name], {"num_hidden_layers": 6})
    config = parse_config(facts, {})
    family = family_of(config)
    declared = {tensor.name: tensor.shape for tensor in family.tensors(config)}
    model_type = facts.pop("model_type")
    auto_class = AutoModelForCausalLM if config.vision is None else AutoModelForImageTextToText
    with torch.device("meta"):
        reference = auto_class.from_config(AutoConfig.for_model(model_type, **facts))
    shapes = {
        family.hub_name(name): tuple(weight.shape)
        for name, weight in unfused(reference.state_dict()).items()
        if not name.startswith(tuple(family.left_out.keys() - {TOWER}))
    }
    if config.vision is None:  # transformers makes a tower all the same
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(TOWER)}
    if config.tie_embeddings:
        del shapes["lm_head.weight"]
    assert declared == shapes
    assert config.tie_embeddings == reference.config.tie_word_embeddings


def changed(facts: Facts, changes: Facts) -> Facts:
    """Of the text model, where a config has one within."""
    found = deepcopy(facts)
    found.get("text_config", found).update(changes)
    return found


def unfused(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts' gates and the rest apart, as files have them."""
    found: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        if key.endswith("experts.up_proj"):
            found[f"{key}.weight"] = value
        else:
            found |= tiny_gguf.unstacked(key, value)
    return found


HALVES = ["full_attention"] * 2 + ["linear_attention"] * 62


MOE = {"experts.normalizes": True, "experts.shared_intermediate_size": 512, "rotary_dim": 64}
DEEPSEEK_SCALE = 192**-0.5 * (0.0707 * math.log(40) + 1) ** 2
READ: list[tuple[str, Facts, Facts]] = [
    (
        *("qwen3.5-27b", {}),
        {"mixer_kinds": (("delta",) * 3 + ("attention",)) * 16, "rotary_dim": 64}
        | {"rope_theta": 1e7, "norm": "rms_plus_one", "qk_norm": True, "has_output_gate": True},
    ),
    (
        *("qwen3.5-27b", {"layer_types": HALVES, "full_attention_interval": 4}),
        {"mixer_kinds": ("attention",) * 2 + ("delta",) * 62},
    ),
    ("qwen3.5-35b-a3b", {}, MOE | {"mlp_kinds": ("sparse",) * 40}),
    ("qwen3-next-80b-a3b", {}, MOE | {"mlp_kinds": ("sparse",) * 48}),
    (
        *("hunyuan-a13b", {"moe_intermediate_size": 1536, "num_shared_expert": 2}),
        {"experts.intermediate_size": 1536, "experts.shared_intermediate_size": 2 * 3072}
        | {"rope_theta": pytest.approx(10_000.0 * 1000.0 ** (128 / 126)), "rope_scaling": None},
    ),
    (
        *("llama 4", {}),
        {"mixers": ("chunked",) * 3 + ("unrotated",), "mlps": ("dense", "sparse") * 2},
    ),
    (
        *("gemma 4", {}),
        {"layer_kv": (((1, 256),) * 4 + ((1, 512),)) * 2 + ((0, 256),) * 4 + ((0, 512),)},
    ),
    (
        *("deepseek-v2-lite", {}),
        {"attention_scale": pytest.approx(DEEPSEEK_SCALE), "rope_scaling.attention_factor": 1.0},
    ),
    ("phi-4", {"rope_scaling": LONGROPE}, {"rope_scaling.kind": "longrope"}),
]


@each_case(("name", "changes", "read"), READ)
def test_what_is_read(name: str, changes: Facts, read: Facts) -> None:
    config = parse_config(changed(BASES[name], changes), {})
    assert {key: attrgetter(key)(config) for key in read} == read


def test_layers_of_a_kind_see_and_keep_what_is_theirs() -> None:
    llama4 = parse_config(BASES["llama 4"], {})
    assert (llama4.window_of("chunked"), llama4.window_of("unrotated")) == (16, None)
    assert llama4.grows_queries("unrotated") and not llama4.grows_queries("chunked")
    delta = parse_config(BASES["qwen3.5-27b"], {}).delta
    assert delta is not None and state_bytes(delta) == 4 * (3 * 10240 + 48 * 128 * 128)
    latent = parse_config(BASES["deepseek-v2-lite"], {})
    formats: dict[KVFormat, int] = {"bf16": 2 * 576, "fp32": 4 * 576, "int8": 576 + 4 * 9}
    for kv_format, of_layer in formats.items():
        assert kv_bytes_of_layer(latent, 3, kv_format) == of_layer
        assert kv_bytes_per_token(latent, kv_format) == 27 * of_layer


def test_layers_of_gemma_4_that_read_others_keep_nothing() -> None:
    config = parse_config(GEMMA4, {})
    assert len(cache_layout(config).attention_layers) == 15
    assert kv_bytes_per_token(config, "bf16") == 2 * 2 * 2 * (4 * 256 + 512)
    calls = inspect_config(config)
    assert [call.kv_layer for call in calls] == [*range(10), 8, 8, 8, 8, 9]
    assert [call.window for call in calls[:5]] == [512] * 4 + [None]
    listed = {"0": {"head_dim": 8}, "1": {"head_dim": 16, "num_key_value_heads": 1}}
    facts = {"num_hidden_layers": 2, "num_key_value_heads": 4, "per_layer_config": listed}
    assert layer_kv(facts) == ((4, 8), (1, 16))


def rows_of(name: str, *rows: tuple[Facts, str]) -> Iterable[tuple[str, Facts, str]]:
    return [(name, *row) for row in rows]


OF_QWEN = "layer_types is not 64 times one of"
REFUSED = [
    *rows_of(
        "hunyuan-a13b",
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic' is not"),
        *(
            ({"rope_scaling": {"type": "dynamic", "alpha": alpha}}, "not a number above 0")
            for alpha in (-1.0, True, "much")
        ),
        *(
            ({key: [8, 8, 4]}, f"layers that differ in {key}")
            for key in ("moe_topk", "num_experts", "moe_intermediate_size")
        ),
        *(
            ({key: 1}, f"{key}.* not supported")
            for key in ("use_cla", "use_mla", "moe_layer_num_skipped")
        ),
    ),
    *rows_of(
        "qwen3.5-27b",
        ({"layer_types": ["full_attention"] * 63}, OF_QWEN),
        ({"layer_types": ["sliding_attention"] * 64}, OF_QWEN),
    ),
    *rows_of(
        "granite-4.0-h-tiny",
        ({"layer_types": ["rwkv"] * 40}, "layers of the type 'rwkv' are not supported"),
        ({"layer_types": ["attention"]}, "layer_types lists 1 of 40 layers"),
    ),
    *rows_of(
        "llama 4",
        ({"layer_types": ["chunked_attention"] * 4}, "rotate nothing within chunks"),
        ({"attention_chunk_size": None}, "attention_chunk_size is None"),
        ({"floor_scale": -1}, "floor_scale is -1"),
        ({"num_experts_per_tok": 6}, "6 experts per token are more than 5"),
    ),
    *rows_of(
        "deepseek v2",
        ({"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported; known: greedy"),
        ({"norm_topk_prob": True}, "norm_topk_prob is not supported"),
        ({"scoring_func": "sigmoid"}, "scoring_func 'sigmoid' is not supported"),
        ({"n_group": 5}, "12 experts are not 5 groups of the same one or more"),
    ),
    *rows_of(
        "deepseek v3",
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ({"topk_method": "greedy"}, "topk_method 'greedy' is not supported"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        ({"kv_lora_rank": None}, "kv_lora_rank is None"),
        ({"qk_rope_head_dim": 7}, "7 features of each head"),
        ({"n_group": 5}, "12 experts are not 5 groups of the same two or more"),
    ),
    *rows_of(
        "glm 4.5, few experts",
        ({"n_group": 4}, "6 experts are not 4 groups of the same two or more"),
        ({"n_group": 6}, "6 experts are not 6 groups"),
        ({"n_group": 3, "topk_group": 4}, "4 groups per token are more than 3"),
        ({"n_group": 3, "num_experts_per_tok": 3}, "1 groups of 2 experts are fewer than the 3"),
        ({"n_group": -1}, "n_group is -1"),
        ({"n_group": 2, "topk_group": "all"}, "topk_group is 'all'"),
    ),
    ("qwen3_moe", {"num_experts_per_tok": 7}, "7 experts per token are more than 6"),
    *rows_of(
        "phi-4",
        ({"rope_scaling": LONGROPE | {"short_factor": [1.0]}}, "short_factor and long_factor"),
        (
            {"rope_scaling": LONGROPE | {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4}},
            "scales 4 frequencies",
        ),
    ),
]


@each_case(("name", "changes", "message"), REFUSED, ids=str)
def test_what_would_be_computed_wrongly_is_refused(name: str, changes: Facts, message: str) -> None:
    with pytest.raises(BadFileError, match=message):
        parse_config(changed(BASES[name], changes), {})


def test_families_are_declared_once_and_wholly() -> None:
    for names in ("model_types", "gguf_architectures"):
        declared = [name for family in FAMILIES for name in getattr(family, names)]
        assert declared and len(declared) == len(set(declared))
    for family in FAMILIES:
        module, _, name = family.builder.partition(":")
        assert callable(getattr(import_module(module), name)), family.model_types


@each_case(
    ("check", "name", "nearest"),
    [
        (check_architecture, "lama", "llama and llama4"),
        (check_architecture, "qwen3_nxt", "qwen3_next"),
        (check_architecture, "zzz", ""),
        (check_gguf_architecture, "gemma5", "gemma and gemma3"),
    ],
)
def test_an_unknown_architecture_is_refused_with_those_that_are_spelt_like_it(
    check: Callable[[str], Family], name: str, nearest: str
) -> None:
    with pytest.raises(UnknownArchitectureError) as refused:
        check(name)
    message = str(refused.value)
    assert message.count(repr(name)) == 1 and "docs/models.md" in message
    assert len(message) < 200, "some 150 names"
    assert ("spelt nearly so" in message) == bool(nearest) and nearest in message
    assert refused.value.failure.suggestion == ""

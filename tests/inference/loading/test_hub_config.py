"""Configs of directories and of GGUF files: what they mean, and what makes no sense or would be
computed wrongly, which is refused with the value and the rule."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, GPTNeoXConfig, MambaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from inference.engine.load.load_engine import sampling_warnings
from inference.loading.gguf.config import read_gguf_config
from inference.loading.gguf.header import read_header
from inference.loading.hub_config import (
    learnt_config,
    parse_config,
    read_directory_config,
    with_model_type,
)
from inference.models.config import ModelConfig, RopeScaling
from inference.models.families.gguf_keys import SAMPLING_KEYS, text_facts
from inference.models.families.registry import known_model_types
from inference.protocol.load_errors import (
    BadFileError,
    LoadError,
    MissingFileError,
    UnknownArchitectureError,
)
from tests.cases import each_case
from tests.inference.loading.conftest import SIZES, save_gguf

LLAMA = SIZES | {"model_type": "llama", "rope_theta": 5000.0}
SPELT_IN_GGUF = {ours: key for key, ours in SAMPLING_KEYS.items()}
WINDOW, FACTOR = {"sliding_window": 32}, {"factor": 2.0}
SOME_WINDOWS = {"model_type": "qwen2", "max_window_layers": 1, "use_sliding_window": True} | WINDOW
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}
TABLE = {"model.embed_tokens.weight": torch.randn(64, 64)}


def test_what_a_config_means(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    old = parse_config(LLAMA | {"rope_scaling": scaling}, {})
    rope = scaling | {"rope_theta": 5000.0}
    new = parse_config(SIZES | {"model_type": "llama", "rope_parameters": rope}, {})
    assert old == new
    assert old.rope_theta == 5000.0
    assert old.rope_scaling == RopeScaling(kind="llama3", factor=8.0, original_max_positions=64)
    AutoConfig.for_model("qwen3", **SIZES).save_pretrained(tmp_path)
    ours = read_directory_config(tmp_path)
    assert (ours.architecture, ours.qk_norm, ours.qkv_bias) == ("qwen3", True, False)
    assert (ours.head_dim, ours.num_kv_heads, ours.eos_token_ids) == (16, 2, (2,))
    # Qwen 2 declares a window that is off.
    qwen2 = LLAMA | {"model_type": "qwen2", "use_sliding_window": False} | WINDOW
    assert parse_config(qwen2, {}).sliding_window is None
    assert parse_config(LLAMA | {"model_type": "mistral"} | WINDOW, {}).sliding_window == 32
    assert parse_config(LLAMA | {"rope_scaling": YARN}, {}).max_positions == 400
    for architectures, model_type in (
        (["LlamaForCausalLM"], "llama"),
        (["Unheard", "Qwen3MoeForCausalLM"], "qwen3_moe"),
        (["GPT2LMHeadModel"], "gpt2"),
    ):
        given = {"architectures": architectures}
        found = with_model_type(given, ("gpt2", *known_model_types()))
        assert found["model_type"] == model_type, "a missing model type is inferred"


GENERAL = "general.sampling."


def test_the_models_defaults_of_sampling() -> None:
    for written, read in (
        ({"temperature": 0.6, "repetition_penalty": 1.1},) * 2,
        ({"top_k": 50.0}, {"top_k": 50}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"temperature": 0, "top_p": 1},) * 2,
        ({"min_p": None}, {}),
    ):
        config = parse_config(LLAMA, {"eos_token_id": [2, 7], "max_new_tokens": 5} | written)
        assert (config.eos_token_ids, config.generation_defaults) == ((2, 7), read)
        spelt = {SPELT_IN_GGUF[name]: value for name, value in written.items()}
        assert text_facts(spelt)["generation_defaults"] == read
    for name, value in (
        *(("temperature", value) for value in (-0.1, math.nan, math.inf, "0.7")),
        *(("top_p", value) for value in (1.1, True)),
        *(("top_k", value) for value in (2.5, 2**31)),
        ("min_p", -1),
        *(("repetition_penalty", value) for value in (0, 1e-39, [1.1])),
    ):
        with pytest.raises(BadFileError, match=rf"the model's default {name} is"):
            parse_config(LLAMA, {name: value})
        with pytest.raises(BadFileError, match=rf"default {SPELT_IN_GGUF[name]} is|top_k is"):
            text_facts({SPELT_IN_GGUF[name]: value})
    for given, unused in (
        ({f"{GENERAL}sequence": "penalties;xtc"}, (f"{GENERAL}sequence 'penalties;xtc'",)),
        ({f"{GENERAL}mirostat": 2, f"{GENERAL}mirostat_tau": 5.0}, (f"{GENERAL}mirostat 2",)),
        ({f"{GENERAL}xtc_probability": 0.0, f"{GENERAL}xtc_threshold": 0.1}, ()),
        ({f"{GENERAL}temp": 0.6}, ()),
        ({"typical_p": 0.95, "num_beams": 4}, ("typical_p 0.95", "num_beams 4")),
        ({"typical_p": 1.0, "num_beams": 1, "epsilon_cutoff": 0.0}, ()),
    ):
        assert text_facts(given)["unused_defaults"] == unused
        assert parse_config(LLAMA, given).unused_defaults == unused
        warnings = sampling_warnings(unused)
        assert all(default in one for default, one in zip(unused, warnings, strict=True))


NESTED = {"model_type": "mistral3", "text_config": {"num_local_experts": 10**9}}


@each_case(
    ("config", "error", "named"),
    [
        (LLAMA | {"hidden_act": "gelu"}, BadFileError, "gelu"),
        (LLAMA | {"quantization_config": {"quant_method": "gptq"}}, BadFileError, "gptq"),
        (LLAMA | {"rope_scaling": {"rope_type": "longrope"} | FACTOR}, BadFileError, "longrope"),
        (LLAMA | {"partial_rotary_factor": 0.5}, BadFileError, "partial_rotary_factor"),
        (LLAMA | {"hidden_size": "big"}, BadFileError, "hidden_size"),
        (LLAMA | {"num_hidden_layers": None}, BadFileError, "num_hidden_layers"),
        (LLAMA | SOME_WINDOWS, BadFileError, "some of the layers"),
        (NESTED, BadFileError, r"num_local_experts is 1000000000; .* up to 65536"),
        ({}, BadFileError, "config.json has neither model_type nor architectures"),
        ({"architectures": "Llama"}, BadFileError, "neither model_type nor architectures"),
        ({"architectures": ["MadeUpForCausalLM"]}, BadFileError, "no model_type, and MadeUpForC"),
        ({"architectures": ["QwenThreeForCausalLM"]}, BadFileError, r"docs/models\.md"),
        (LLAMA | {"model_type": "bert"}, UnknownArchitectureError, r"'bert'.*docs/models\.md"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(
    config: dict[str, Any], error: type[LoadError], named: str
) -> None:
    with pytest.raises(error, match=named):
        parse_config(config, {})


def test_files_that_are_not_there_or_not_json(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"config\.json"):
        read_directory_config(tmp_path)
    for content, words in (("{", "not JSON"), ("[" * 200_000, "not JSON"), ("[1]", "JSON object")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(BadFileError, match=words):
            read_directory_config(tmp_path)


def test_gguf_rope_divisors_become_the_llama3_rule(tmp_path: Path) -> None:
    rope = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    hf = AutoConfig.for_model("llama", **(SIZES | {"rope_parameters": rope}))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](hf, torch.device("cpu"))
    divisors = 10000.0 ** (-torch.arange(0, 16, 2) / 16) / scaled

    def read(divisors: torch.Tensor) -> ModelConfig:
        tensors = TABLE | {"rope_freqs.weight": divisors}
        sizes = SIZES | {"max_position_embeddings": 131_072}
        return read_gguf_config(read_header(save_gguf(tmp_path / "x.gguf", tensors, sizes=sizes)))

    assert read(divisors).rope_scaling == RopeScaling(kind="llama3", factor=32.0)
    with pytest.raises(BadFileError, match=r"rope_freqs\.weight"):
        read(torch.linspace(1.0, 9.0, 8))


CHANNELS = ("<|end|>", "<|return|>", "<|call|>", "<|channel|>")


@each_case(
    ("metadata", "named", "ends"),
    [
        ({}, (), (2,)),
        ({"tokenizer.ggml.eot_token_id": 5}, (), (2, 5)),
        ({"tokenizer.ggml.eot_token_id": 5}, ("<|im_end|>",), (2, 5, 3)),
        # With channels it ends with its answer, and not with its thought.
        ({}, CHANNELS, (2, 4, 5)),
    ],
)
def test_gguf_ends_turns_where_its_chat_template_does(
    tmp_path: Path, metadata: dict[str, Any], named: tuple[str, ...], ends: tuple[int, ...]
) -> None:
    header = read_header(save_gguf(tmp_path / "x.gguf", TABLE, metadata=metadata))
    tokens = ["<unk>", "<s>", "</s>", *named, *(f"t{i}" for i in range(61 - len(named)))]
    own: dict[str, Any] = {"tokenizer.ggml.tokens": tokens}
    found = read_gguf_config(replace(header, metadata=dict(header.metadata) | own))
    assert found.eos_token_ids == ends


SCALING = "llama.rope.scaling."
SCALED = {f"{SCALING}factor": 8.0}


@each_case(
    ("metadata", "named"),
    [
        ({"general.architecture": "rwkv"}, "rwkv"),
        ({"llama.expert_count": 8}, r"llama\.expert_count"),
        ({"llama.rope.dimension_count": 8}, r"llama\.rope\.dimension_count is 8"),
        ({"llama.rope.scale_linear": math.nan}, "nan"),
        ({f"{SCALING}type": "longrope"}, "longrope"),
        (SCALED | {f"{SCALING}type": "llama3"}, r"rope_freqs\.weight, which the file lacks"),
        (SCALED | {f"{SCALING}type": "dynamic"}, "'dynamic' is not supported; known: linear"),
    ],
)
def test_gguf_metadata_that_would_be_computed_wrongly_is_refused(
    tmp_path: Path, metadata: dict[str, Any], named: str
) -> None:
    header = read_header(save_gguf(tmp_path / "x.gguf", TABLE))
    header = replace(header, metadata=dict(header.metadata) | metadata)
    with pytest.raises((BadFileError, UnknownArchitectureError), match=named):
        read_gguf_config(header)


FEW = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2}
MODULES: dict[str, dict[str, Any]] = {
    config.model_type: json.loads(config.to_json_string(use_diff=False))
    for config in (
        GPTNeoXConfig(
            **FEW, num_attention_heads=4, intermediate_size=96, max_position_embeddings=64
        ),
        MambaConfig(**FEW, state_size=8),
    )
}


@each_case(
    ("model_type", "path", "values"),
    [
        ("mamba", "layer_norm_epsilon", ("x", None, [1], -1.0, float("nan"), float("inf"))),
        ("mamba", "intermediate_size", ("x", None, [1], -1, True)),
        ("mamba", "vocab_size", ("x", None, [1], -1, True)),
        ("mamba", "time_step_rank", ("x", -1)),
        ("mamba", "bos_token_id", ("x",)),
        ("gpt_neox", "layer_norm_eps", ("x", None, [1], -1e-5)),
        ("gpt_neox", "num_key_value_heads", ("x", [1], -1)),
        ("gpt_neox", "head_dim", ("x", [1], -1)),
        ("gpt_neox", "rope_parameters.rope_theta", ("x", None, float("nan"))),
        ("gpt_neox", "rope_parameters.partial_rotary_factor", ("x", -1)),
        ("gpt_neox", "hidden_dropout", (-1,)),
    ],
)
def test_a_wrong_number_is_refused_by_name(
    model_type: str, path: str, values: tuple[Any, ...]
) -> None:
    learnt_config(parse_config(MODULES[model_type], {}))
    for value in values:
        config = deepcopy(MODULES[model_type])
        outer, _, name = path.rpartition(".")
        (config[outer] if outer else config)[name] = value
        with pytest.raises(LoadError, match=name):
            learnt_config(parse_config(config, {}))

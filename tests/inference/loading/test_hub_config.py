"""Configs of directories and of GGUF files: what they mean, and what makes no sense or would be
computed wrongly, which is refused with the value and the rule."""

from __future__ import annotations

import json
import math
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from inference.engine.load.load_engine import sampling_warnings
from inference.loading.checked_config import check_config
from inference.loading.gguf.config import read_gguf_config
from inference.loading.gguf.header import ARRAY, read_header
from inference.loading.hub_config import (
    learnt_config,
    parse_config,
    read_directory_config,
    with_model_type,
)
from inference.models.config import ModelConfig, RopeScaling
from inference.models.families.gguf_keys import SAMPLING_KEYS, text_facts
from inference.models.families.registry import known_model_types
from inference.models.layer_configs import DeltaConfig, ExpertsConfig, MambaConfig, ShortConvConfig
from inference.protocol.load_errors import (
    BadFileError,
    LoadError,
    MissingFileError,
    UnknownArchitectureError,
)
from tests.cases import each_case
from tests.inference.loading.conftest import SIZES, edit_json, opened, save_gguf
from tests.inference.loading.editable_gguf import FLOAT32, EditableGGUF
from tests.inference.models.dense_weights import TINY

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
SCALING = "llama.rope.scaling."
SCALED = {f"{SCALING}factor": 8.0}


def test_gguf_metadata_is_read_or_refused_where_it_would_be_computed_wrongly(
    tmp_path: Path,
) -> None:
    """Turns end where the chat template ends them: with channels it ends with its answer, and not
    with its thought."""
    header = read_header(save_gguf(tmp_path / "x.gguf", TABLE))

    def read(own: dict[str, Any]) -> ModelConfig:
        return read_gguf_config(replace(header, metadata=dict(header.metadata) | own))

    for own, named, ends in (
        ({}, (), (2,)),
        ({"tokenizer.ggml.eot_token_id": 5}, (), (2, 5)),
        ({"tokenizer.ggml.eot_token_id": 5}, ("<|im_end|>",), (2, 5, 3)),
        ({}, CHANNELS, (2, 4, 5)),
    ):
        tokens = ["<unk>", "<s>", "</s>", *named, *(f"t{i}" for i in range(61 - len(named)))]
        assert read({**own, "tokenizer.ggml.tokens": tokens}).eos_token_ids == ends
    for own, words in (
        ({"general.architecture": "rwkv"}, "rwkv"),
        ({"llama.expert_count": 8}, r"llama\.expert_count"),
        ({"llama.rope.dimension_count": 8}, r"llama\.rope\.dimension_count is 8"),
        ({"llama.rope.scale_linear": math.nan}, "nan"),
        ({f"{SCALING}type": "longrope"}, "longrope"),
        (SCALED | {f"{SCALING}type": "llama3"}, r"rope_freqs\.weight, which the file lacks"),
        (SCALED | {f"{SCALING}type": "dynamic"}, "'dynamic' is not supported; known: linear"),
    ):
        with pytest.raises((BadFileError, UnknownArchitectureError), match=words):
            read(own)


FEW = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2}
MODULES: dict[str, dict[str, Any]] = {
    config.model_type: json.loads(config.to_json_string(use_diff=False))
    for config in (
        transformers.GPTNeoXConfig(
            **FEW, num_attention_heads=4, intermediate_size=96, max_position_embeddings=64
        ),
        transformers.MambaConfig(**FEW, state_size=8),
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


LARGEST = 2**31 - 1
WRONG_JSON: list[tuple[dict[str, Any], str]] = [
    ({"num_key_value_heads": 8}, "4 query heads cannot share 8 heads"),
    ({"num_key_value_heads": "two"}, "num_key_value_heads is 'two'"),
    ({"num_attention_heads": 4.5}, "num_attention_heads is 4.5"),
    ({"hidden_size": 0}, "hidden_size is 0"),
    ({"hidden_size": 128}, "embed_tokens.weight is 64 x 64 and should be 64 x 128"),
    ({"num_hidden_layers": LARGEST}, "num_hidden_layers is 2147483647"),
    ({"max_position_embeddings": LARGEST}, "max_position_embeddings is 2147483647"),
    ({"eos_token_id": 64}, "end-of-text token 64 is outside the vocabulary of 64"),
    ({"eos_token_id": [2, -1]}, "end-of-text token -1 is outside"),
    ({"eos_token_id": "</s>"}, "cannot be read"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}, "rope_theta is -1"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": -4.0}}, "yarn is -4"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 1e9}}, "max_positions is 128000000000"),
    ({"rope_parameters": {"rope_type": "linear"}}, "cannot be read: KeyError: 'factor'"),
    ({"rope_parameters": [1]}, "cannot be read"),
    ({"quantization_config": "awq"}, "cannot be read"),
]
TOKENS = [str(token) for token in range(64)]
WRONG_GGUF: list[tuple[str, Any, int, str | None]] = [
    ("llama.attention.head_count_kv", 8, 4, "cannot share 8 heads"),
    ("llama.attention.head_count_kv", -2, 5, "head_count_kv is -2"),
    ("llama.block_count", LARGEST, 4, "block_count is 2147483647"),
    ("llama.context_length", LARGEST, 4, "context_length is 2147483647"),
    ("llama.context_length", 0, 4, "lacks llama.context_length"),
    ("llama.embedding_length", 0, 4, "lacks llama.embedding_length"),
    ("llama.attention.layer_norm_rms_epsilon", math.nan, FLOAT32, "rms_norm_eps is nan"),
    ("llama.rope.freq_base", math.inf, FLOAT32, "rope_theta is inf"),
    ("tokenizer.ggml.eos_token_id", 64, 4, "end-of-text token 64 is outside"),
    ("tokenizer.ggml.bos_token_id", 64, 4, "bos_token_id is 64, which is outside"),
    ("tokenizer.ggml.merges", 1, 4, "tokenizer.ggml.merges is no list of str"),
    ("tokenizer.ggml.merges", ["ab"], ARRAY, "makes no tokenizer"),
    ("tokenizer.ggml.tokens", TOKENS[:63], ARRAY, "63 tokens, and the embedding token_embd.weight"),
    ("tokenizer.ggml.token_type", [1] * 65, ARRAY, "token_type has 65 entries for 64 tokens"),
    # These are not read: such a file loads.
    ("llama.vocab_size", 1, 4, None),
    ("general.base_model.count", 2**63 - 1, 10, None),
]


def refuses(source: Path, tmp_path: Path, words: str) -> None:
    with pytest.raises(BadFileError, match=re.escape(words)) as caught:
        opened(source, tmp_path)
    assert caught.value.failure.code == "bad_file"


@each_case(("changes", "words"), WRONG_JSON, ids=lambda value: str(value)[:40])
def test_config_json_is_refused_by_the_value_and_the_rule(
    changes: dict[str, Any], words: str, tiny_directory: Path, tmp_path: Path
) -> None:
    directory = copytree(tiny_directory, tmp_path / "changed")
    (directory / "generation_config.json").unlink()
    edit_json(directory / "config.json", **changes)
    refuses(directory, tmp_path, words)


@each_case(("key", "value", "kind", "words"), WRONG_GGUF)
def test_gguf_metadata_is_refused_by_the_value_and_the_rule(
    key: str, value: Any, kind: int, words: str | None, tiny_file: Path, tmp_path: Path
) -> None:
    file = EditableGGUF.read(tiny_file)
    file.set(key, value, kind)
    source = file.write(tmp_path / "y.gguf")
    if words is None:
        opened(source, tmp_path).close()
    else:
        refuses(source, tmp_path, words)


EXPERTS = ExpertsConfig(num_experts=4, experts_per_token=2, intermediate_size=32)
DELTA = DeltaConfig(
    num_key_heads=2, num_value_heads=4, key_head_dim=16, value_head_dim=16, conv_kernel=4
)
MAMBA = MambaConfig(num_heads=4, head_dim=16, num_groups=2, state_size=16, conv_kernel=4)
TWICE = RopeScaling(kind="yarn", factor=2.0, original_max_positions=64)
LONG = RopeScaling(kind="longrope", factor=2.0, short_divisors=(1.0,) * 8, long_divisors=(2.0,) * 8)
SPARSE: dict[str, Any] = {"mlps": ("sparse",) * 2}
CONFIGS: list[tuple[dict[str, Any], str | None]] = [
    ({"experts": EXPERTS, **SPARSE}, None),
    ({"delta": DELTA, "mixers": ("delta", "attention")}, None),
    ({"mamba": MAMBA, "mixers": ("mamba", "attention"), "rope_scaling": TWICE}, None),
    ({"rope_scaling": LONG}, None),
    ({"num_layers": 0}, "num_layers is 0"),
    ({"rotary_dim": 7}, "7 features"),
    ({"vocab_size": 2**31}, "vocab_size is 2147483648"),
    ({"mixers": ("attention",)}, "1 layers are listed"),
    ({"mixers": ("sliding",) * 2}, "within a window"),
    ({"mixers": ("chunked",) * 2}, "within chunks"),
    ({"mixers": ("chunked",) * 2, "chunk_tokens": 0}, "chunk_tokens is 0"),
    ({"sliding_window": 0}, "sliding_window is 0"),
    ({"sliding_window": 20.0}, "sliding_window is 20.0, not a whole number"),
    (SPARSE, "experts that are not declared"),
    ({"rotary_dim": 18}, "18 features of each head of 16"),
    ({"experts": replace(EXPERTS, experts_per_token=5), **SPARSE}, "from 1 to 4"),
    ({"experts": replace(EXPERTS, weight_scale=math.nan), **SPARSE}, "weight_scale"),
    ({"delta": replace(DELTA, num_value_heads=3)}, "3 value heads"),
    ({"delta": replace(DELTA, conv_kernel=0)}, "conv_kernel is 0"),
    ({"mamba": replace(MAMBA, num_groups=3)}, "3 equal groups"),
    ({"mamba": replace(MAMBA, step_limit=(1.0, 0.5))}, "limited to 1.0"),
    ({"mamba": replace(MAMBA, step_limit=(0.0, 1e300))}, "limited to 0.0 … 1e+300"),
    ({"rope_theta": 1e300}, "rope_theta is 1e+300"),
    ({"short_conv": ShortConvConfig(channels=-64, kernel=3)}, "channels of a convolution is -64"),
    ({"rope_scaling": replace(TWICE, original_max_positions=0)}, "original positions is 0"),
    ({"rope_scaling": replace(TWICE, beta_fast=math.nan)}, "beta_fast is nan"),
    ({"rope_scaling": TWICE, "rope_theta": 1.0}, "not above 1"),
    ({"rope_scaling": replace(LONG, long_divisors=(2.0,) * 7)}, "7 divisors for 8 frequencies"),
    ({"rope_scaling": replace(LONG, long_divisors=(0.0,) * 8)}, "a divisor is 0.0"),
    *(
        ({"rope_scaling": replace(TWICE, factor=value)}, f"yarn: factor is {value}")
        for value in (math.nan, math.inf, 0.0)
    ),
    ({"attention_scale": math.inf}, "attention_scale is inf"),
    ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
    ({"layer_kv": ((-1, 2),) * 2}, "a layer has -1 heads"),
    ({"experts": replace(EXPERTS, limit=0.0), **SPARSE}, "limit of experts' gates is 0.0"),
    ({"experts": replace(EXPERTS, shared_intermediate_size=0), **SPARSE}, "shared expert is 0"),
    ({"logit_soft_cap": 0.0}, "logit_soft_cap is 0.0"),
]


@each_case(("changes", "words"), CONFIGS, ids=lambda value: str(value)[:40])
def test_a_config_makes_sense_or_is_refused(changes: dict[str, Any], words: str | None) -> None:
    config = replace(TINY, **changes)
    if words is None:
        assert check_config(config) is config
        return
    with pytest.raises(BadFileError, match="makes no sense") as caught:
        check_config(config)
    assert words in str(caught.value)

"""Configs whose numbers make no sense are refused at once, with the number and the rule."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from inference.loading.checked_config import check_config
from inference.loading.gguf.header import ARRAY, STRING
from inference.models.config import RopeScaling
from inference.models.layer_configs import DeltaConfig, ExpertsConfig, MambaConfig, ShortConvConfig
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.loading.conftest import edit_json, opened
from tests.inference.loading.editable_gguf import FLOAT32, EditableGGUF
from tests.inference.models.dense_weights import TINY

LARGEST = 2**31 - 1


WRONG_JSON: list[tuple[dict[str, Any], str]] = [
    ({"num_key_value_heads": 8}, "4 query heads cannot share 8 heads"),
    ({"num_key_value_heads": "two"}, "num_key_value_heads is 'two'"),
    ({"num_attention_heads": -4}, "num_attention_heads is -4"),
    ({"num_attention_heads": 4.5}, "num_attention_heads is 4.5"),
    ({"hidden_size": 0}, "hidden_size is 0"),
    ({"hidden_size": 128}, "embed_tokens.weight is 64 x 64 and should be 64 x 128"),
    ({"head_dim": 15}, "15 features of each head"),
    ({"num_hidden_layers": LARGEST}, "num_hidden_layers is 2147483647"),
    ({"max_position_embeddings": LARGEST}, "max_position_embeddings is 2147483647"),
    ({"eos_token_id": 64}, "end-of-text token 64 is outside the vocabulary of 64"),
    ({"eos_token_id": [2, -1]}, "end-of-text token -1 is outside"),
    ({"eos_token_id": "</s>"}, "cannot be read"),
    ({"rms_norm_eps": math.nan}, "rms_norm_eps is nan"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}, "rope_theta is -1"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": -4.0}}, "yarn is -4"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 1e9}}, "max_positions is 128000000000"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 0.0}}, "factor is 0.0"),
    ({"rope_parameters": {"rope_type": "linear"}}, "cannot be read: KeyError: 'factor'"),
    ({"rope_parameters": [1]}, "cannot be read"),
    ({"quantization_config": "awq"}, "cannot be read"),
]
FACTOR, TOKENS = "llama.rope.scaling.factor", [str(token) for token in range(64)]
WRONG_GGUF: list[tuple[str, Any, int, str | None]] = [
    ("llama.attention.head_count_kv", 8, 4, "cannot share 8 heads"),
    ("llama.attention.head_count_kv", -2, 5, "head_count_kv is -2"),
    ("llama.block_count", LARGEST, 4, "block_count is 2147483647"),
    ("llama.context_length", LARGEST, 4, "context_length is 2147483647"),
    ("llama.context_length", 0, 4, "lacks llama.context_length"),
    ("llama.embedding_length", 0, 4, "lacks llama.embedding_length"),
    ("llama.attention.layer_norm_rms_epsilon", math.nan, FLOAT32, "rms_norm_eps is nan"),
    ("llama.rope.freq_base", math.inf, FLOAT32, "rope_theta is inf"),
    *((FACTOR, value, FLOAT32, f"yarn is {value}") for value in (math.nan, math.inf, 0.0)),
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
    if key == FACTOR:
        file.set("llama.rope.scaling.type", "yarn", STRING)
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
YARN = RopeScaling(kind="yarn", factor=2.0, original_max_positions=64)
LONG = RopeScaling(kind="longrope", factor=2.0, short_divisors=(1.0,) * 8, long_divisors=(2.0,) * 8)
SPARSE: dict[str, Any] = {"mlps": ("sparse",) * 2}


CONFIGS: list[tuple[dict[str, Any], str | None]] = [
    ({"experts": EXPERTS, **SPARSE}, None),
    ({"delta": DELTA, "mixers": ("delta", "attention")}, None),
    ({"mamba": MAMBA, "mixers": ("mamba", "attention"), "rope_scaling": YARN}, None),
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
    ({"rope_scaling": replace(YARN, original_max_positions=0)}, "original positions is 0"),
    ({"rope_scaling": replace(YARN, beta_fast=math.nan)}, "beta_fast is nan"),
    ({"rope_scaling": YARN, "rope_theta": 1.0}, "not above 1"),
    ({"rope_scaling": replace(LONG, long_divisors=(2.0,) * 7)}, "7 divisors for 8 frequencies"),
    ({"rope_scaling": replace(LONG, long_divisors=(0.0,) * 8)}, "a divisor is 0.0"),
    ({"rope_scaling": replace(YARN, factor=math.nan)}, "yarn: factor is nan"),
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

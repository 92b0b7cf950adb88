"""Wrong values in the config.json of the transformers backend's models are refused by name."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from transformers import GPTNeoXConfig, MambaConfig

from inference.loading.config.hub_config import learnt_config, parse_config
from inference.protocol.load_errors import LoadError
from tests.cases import each_case

SIZES = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2}
CONFIGS: dict[str, dict[str, Any]] = {
    config.model_type: json.loads(config.to_json_string(use_diff=False))
    for config in (
        GPTNeoXConfig(
            **SIZES, num_attention_heads=4, intermediate_size=96, max_position_embeddings=64
        ),
        MambaConfig(**SIZES, state_size=8),
    )
}


def test_the_configs_as_they_are() -> None:
    for config in CONFIGS.values():
        learnt_config(parse_config(config, {}))


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
    for value in values:
        config = deepcopy(CONFIGS[model_type])
        outer, _, name = path.rpartition(".")
        (config[outer] if outer else config)[name] = value
        with pytest.raises(LoadError, match=name):
            learnt_config(parse_config(config, {}))

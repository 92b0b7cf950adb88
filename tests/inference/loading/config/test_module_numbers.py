"""Wrong values in the config.json of the transformers backend's models are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import GPTNeoXConfig, MambaConfig, PreTrainedConfig

from inference.loading.config.hub_config import learnt_config, parse_config
from inference.protocol.load_errors import LoadError
from tests.cases import each_case

SIZES = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2}
HUB_CONFIGS: dict[str, PreTrainedConfig] = {
    "gpt_neox": GPTNeoXConfig(
        **SIZES, num_attention_heads=4, intermediate_size=96, max_position_embeddings=64
    ),
    "mamba": MambaConfig(**SIZES, state_size=8),
}
CONFIGS: dict[str, dict[str, Any]] = {
    model_type: json.loads(config.to_json_string(use_diff=False))
    for model_type, config in HUB_CONFIGS.items()
}
WRONG: dict[str, Any] = {
    "text": "x",
    "null": None,
    "list": ["x"],
    "negative": -1,
    "negative fraction": -0.5,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "object": {"a": 1},
    "boolean": True,
}
FREE = frozenset({"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id"})
"""May be null, and are checked as token ids."""


def refusal(model_type: str, path: tuple[str, ...], value: Any) -> str | None:
    """``None``: it is taken."""
    config = json.loads(json.dumps(CONFIGS[model_type]))
    inside = config
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    try:
        learnt_config(parse_config(config, {}))
    except LoadError as error:
        return str(error)
    return None


def test_the_configs_as_they_are() -> None:
    for model_type, config in CONFIGS.items():
        learnt_config(parse_config(config, {}))
        assert model_type == config["model_type"]


@each_case(
    ("model_type", "path", "value"),
    [
        *(("mamba", "layer_norm_epsilon", value) for value in ("x", None, [1], -1.0)),
        *(("mamba", "layer_norm_epsilon", float(word)) for word in ("nan", "inf")),
        *(("mamba", "intermediate_size", value) for value in ("x", None, [1], -1, True)),
        *(("mamba", "vocab_size", value) for value in ("x", None, [1], -1, True)),
        *(("mamba", "time_step_rank", value) for value in ("x", -1)),
        ("mamba", "bos_token_id", "x"),
        *(("gpt_neox", "layer_norm_eps", value) for value in ("x", None, [1], -1e-5)),
        *(("gpt_neox", "num_key_value_heads", value) for value in ("x", [1], -1)),
        *(("gpt_neox", "head_dim", value) for value in ("x", [1], -1)),
        *(("gpt_neox", "rope_parameters.rope_theta", value) for value in ("x", None, float("nan"))),
        *(("gpt_neox", "rope_parameters.partial_rotary_factor", value) for value in ("x", -1)),
        ("gpt_neox", "hidden_dropout", -1),
    ],
)
def test_a_wrong_number_is_refused_by_name(model_type: str, path: str, value: Any) -> None:
    steps = tuple(path.split("."))
    refused = refusal(model_type, steps, value)
    assert refused is not None and steps[-1] in refused, refused


@pytest.mark.slow
@pytest.mark.parametrize("model_type", CONFIGS)
def test_every_number_with_every_wrong_value(model_type: str) -> None:
    """A refusal names the field; a value that is no number is never read as one."""
    num_refused = 0
    declared = type(HUB_CONFIGS[model_type]).__annotations__
    for path in _numbers({key: CONFIGS[model_type][key] for key in declared}):
        for name, value in WRONG.items():
            refused = refusal(model_type, path, value)
            num_refused += refused is not None
            if refused is not None:
                assert path[-1] in refused or path[-1] in FREE, (path, name, refused)
            else:
                is_number = name.startswith("negative") or path[-1] in FREE
                assert is_number or name == "boolean", (path, name)
    assert num_refused > 100


def _numbers(config: dict[str, Any], *path: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            found += _numbers(value, *path, key)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((*path, key))
    return found

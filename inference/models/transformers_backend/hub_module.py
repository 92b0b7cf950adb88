"""Modules of transformers: their classes, their configs, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from inference.models.adapter import AdapterWeights
from inference.models.backend import PlainBackend
from inference.models.config import ModelConfig
from inference.models.errors import (
    MissingWeightsError,
    UnsupportedAdapterError,
    UnsupportedModuleError,
)
from inference.models.kv_format import KVFormat
from inference.models.layers.rope import POSITIONS_MULTIPLE
from inference.models.weight_source import WeightSource

NUM_NAMED = 3
"""The most names that a message lists."""
MOST_VALUE_CHARS = 60


def hub_config(config: ModelConfig) -> Any:
    """With transformers' own values for what config.json leaves out."""
    from transformers import CONFIG_MAPPING

    assert config.module_config is not None, "its family keeps it"
    return CONFIG_MAPPING[config.architecture].from_dict(_with_floats(dict(config.module_config)))


def _with_floats(value: Any) -> Any:
    """Numbers that JSON has no word for, as transformers writes them."""
    match value:
        case {"__float__": str(word), **others} if not others:
            return float(word)
        case dict():
            return {key: _with_floats(inner) for key, inner in value.items()}
        case list():
            return [_with_floats(inner) for inner in value]
    return value


def odd_fields(config: ModelConfig) -> list[str]:
    """transformers' own messages often lack the names of fields."""
    from transformers import CONFIG_MAPPING

    usual = CONFIG_MAPPING[config.architecture]().to_dict()
    given = dict(config.module_config or {})
    odd = [(name, value) for name, value in given.items() if _is_odd(value, usual.get(name))]
    rope = given.get("rope_parameters")
    if isinstance(rope, dict):
        odd += [
            (f"rope_parameters.{name}", value)
            for name, value in rope.items()
            if name not in ("rope_type", "type") and _is_odd(value, 1.0)
        ]
    return [f"{name} is {repr(value)[:MOST_VALUE_CHARS]}" for name, value in odd]


def _is_odd(value: Any, usual: Any) -> bool:
    if usual is None:
        return isinstance(value, str) or (_is_number(value) and value < 0)
    if not _is_number(usual):
        return isinstance(usual, str | int | list) and type(value) is not type(usual)
    return not _is_number(value) or value < 0 <= usual


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class ModuleBackend(PlainBackend):
    copies_context = True
    _module: Any
    _passed_over: str

    @property
    def execution(self) -> str:
        """In words."""
        raise NotImplementedError

    def __init__(
        self, config: ModelConfig, weights: WeightSource, context_tokens: int, kv_format: KVFormat
    ) -> None:
        self.config = config
        self.dtype = weights.activation_dtype
        self.device = weights.device
        self.kv_format = kv_format
        self._num_positions = -(-context_tokens // POSITIONS_MULTIPLE) * POSITIONS_MULTIPLE

    def prepare_adapter(self, weights: AdapterWeights) -> NoReturn:
        raise UnsupportedAdapterError(
            f"{self.config.architecture} is computed by the transformers backend, whose "
            "projections take no adapters here"
        )


def class_of(config: ModelConfig) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(hub_config(config))]


def without_weights(config: ModelConfig) -> Any:
    """On torch's meta device. Raises ``UnsupportedModuleError``."""
    try:
        with torch.device("meta"):
            # The grouped product of experts takes only bfloat16 on the meta device.
            return class_of(config)._from_config(hub_config(config), dtype=torch.bfloat16).eval()
    except Exception as error:
        odd = ", ".join(odd_fields(config)[:NUM_NAMED])
        raise UnsupportedModuleError(
            f"transformers builds no {config.architecture!r} of this config.json"
            f"{f', where {odd}' if odd else ''}: {type(error).__name__}: {error}"
        ) from error


def declared_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Raises ``UnsupportedModuleError``."""
    tensors = without_weights(config).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def load_module(
    config: ModelConfig, weights: WeightSource, attention: str | None
) -> tuple[Any, str]:
    """``attention`` ``None``: transformers' choice. The words, for the load report, name tensors
    that the module has no place for. Old files hold masks and tables that modules make by
    themselves now; but config.json may also name another model. Raises ``MissingWeightsError``."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    # Loops over experts: it multiplies in every dtype.
    experts = {"experts_implementation": "eager"} if weights.device.type == "cpu" else {}
    try:
        model, loading_info = class_of(config).from_pretrained(
            None,
            config=hub_config(config),
            state_dict=weights.all_tensors(),
            dtype=weights.activation_dtype,
            attn_implementation=attention,
            output_loading_info=True,
            **experts,
        )
    except RuntimeError as error:
        raise MissingWeightsError(
            f"the weight files do not fit transformers' {class_of(config).__name__}: {error}"
        ) from error
    if missing := sorted(loading_info["missing_keys"]):
        raise MissingWeightsError(f"the weight files lack {named(missing, 1)}")
    unknown = sorted(loading_info["unexpected_keys"])
    passed_over = ""
    if unknown:
        passed_over = f"; passed over, as it has no place for them: {named(unknown, NUM_NAMED)}"
    return model.eval().to(weights.device), passed_over


def named(tensors: Sequence[str], at_most: int) -> str:
    num_others = len(tensors) - at_most
    others = f" and {num_others} more" if num_others > 0 else ""
    return f"{', '.join(tensors[:at_most])}{others}"

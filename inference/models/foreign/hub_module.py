"""transformers' own modules: their classes, their configs, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inference.models.config import ModelConfig
from inference.models.errors import (
    MissingWeightsError,
    UnsupportedAdapterError,
    UnsupportedModuleError,
)
from inference.models.weights import WeightSource

NUM_NAMED = 3
"""Of tensors that a module has no place for."""


@dataclass(frozen=True, slots=True)
class LoadedModule:
    module: Any
    passed_over: str
    """In words, for the load report: tensors of the files that the module has no place for, but for
    those that transformers' class declares to be of no use to it. Old files hold masks and tables
    that modules make by themselves now, so they are no reason to refuse a model; but what is not
    read may also say that it is not the model that config.json calls it."""


def hub_config(config: ModelConfig) -> Any:
    """As transformers reads it: with its own value for what config.json leaves out."""
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


def no_adapters(config: ModelConfig) -> UnsupportedAdapterError:
    return UnsupportedAdapterError(
        f"{config.architecture} is computed by transformers' own module, whose projections take no "
        "adapters here"
    )


def class_of(config: ModelConfig) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING[type(hub_config(config))]


def without_weights(config: ModelConfig) -> Any:
    """On torch's meta device. Raises ``UnsupportedModuleError``."""
    try:
        with torch.device("meta"):
            # In bfloat16: what multiplies experts all at once takes no other dtype there.
            return class_of(config)._from_config(hub_config(config), dtype=torch.bfloat16).eval()
    except Exception as error:
        raise UnsupportedModuleError(
            f"transformers builds no {config.architecture!r} of this config.json: "
            f"{type(error).__name__}: {error}"
        ) from error


def declared_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Of the module's tensors, by name. Raises ``UnsupportedModuleError``."""
    tensors = without_weights(config).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def load_module(config: ModelConfig, weights: WeightSource, attention: str | None) -> LoadedModule:
    """transformers knows what its own files' tensors are called, and which of them it fuses.
    ``attention``: the name of what attends, ``None`` for transformers' choice. Raises
    ``MissingWeightsError``."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    # Loops over experts: it multiplies in every dtype.
    experts = {"experts_implementation": "eager"} if weights.device.type == "cpu" else {}
    try:
        model, told = class_of(config).from_pretrained(
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
    if missing := sorted(told["missing_keys"]):
        raise MissingWeightsError(f"the weight files lack {_named(missing, 1)}")
    unknown = sorted(told["unexpected_keys"])
    passed_over = ""
    if unknown:
        passed_over = f"; passed over, as it has no place for them: {_named(unknown, NUM_NAMED)}"
    return LoadedModule(model.eval().to(weights.device), passed_over)


def _named(tensors: Sequence[str], at_most: int) -> str:
    num_others = len(tensors) - at_most
    others = f" and {num_others} more" if num_others > 0 else ""
    return f"{', '.join(tensors[:at_most])}{others}"

"""adapter_config.json as PEFT writes it: what an adapter changes, and by how much. Pure.

What cannot be computed here is refused by its name, before any weight is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference.protocol.load_errors import BadAdapterError

MOST_RANK = 512
LARGEST_NUMBER = 3.4028234e38
"""float32's largest number. NaN compares false with it."""
REFUSED_FLAGS = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "lora_bias": "a bias in lora_B (lora_bias)",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
    "modules_to_save": "whole modules beside the adapter (modules_to_save)",
    "trainable_token_indices": "trained rows of the embedding (trainable_token_indices)",
    "target_parameters": "parameters of experts (target_parameters)",
    "layer_replication": "replicated layers (layer_replication)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "arrow_config": "routing between adapters (arrow_config)",
}
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Beginnings of ``init_lora_weights`` by which training changes the base model, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    rank: int
    alpha: float
    is_rank_stabilized: bool
    targets: tuple[str, ...] | str
    """Endings of names, or an expression that whole names match; ``all-linear``: all."""
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    changes_some_layers: bool
    """Whether targets are left out in some layers."""

    def rank_of(self, name: str) -> int:
        return self.rank_pattern.get(_matching(self.rank_pattern, name), self.rank)

    def scale_of(self, name: str) -> float:
        alpha = self.alpha_pattern.get(_matching(self.alpha_pattern, name), self.alpha)
        rank = self.rank_of(name)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)

    def is_target(self, name: str) -> bool:
        """``name`` as the base model's files have it, without ``.weight``."""
        if self.targets == "all-linear":
            return True
        if isinstance(self.targets, str):
            return re.fullmatch(self.targets, name) is not None
        return any(name == target or name.endswith(f".{target}") for target in self.targets)


def read_adapter_config(document: object) -> AdapterConfig:
    """Reads parsed JSON. Raises ``BadAdapterError``."""
    if not isinstance(document, dict):
        raise BadAdapterError("adapter_config.json is not an object")
    _refuse_unsupported(document)
    targets = document.get("target_modules")
    if isinstance(targets, list) and targets and all(isinstance(t, str) for t in targets):
        targets = "all-linear" if targets == ["all-linear"] else tuple(targets)
    elif isinstance(targets, str):
        _check_expression("target_modules", targets)
    else:
        raise BadAdapterError("adapter_config.json names no target_modules")
    some_layers = ("layers_to_transform", "layers_pattern", "exclude_modules")
    return AdapterConfig(
        rank=_rank(document.get("r"), "r"),
        alpha=_number(document.get("lora_alpha"), "lora_alpha"),
        is_rank_stabilized=bool(document.get("use_rslora", False)),
        targets=targets,
        rank_pattern={
            name: _rank(value, f"rank_pattern of {name}")
            for name, value in _pattern(document, "rank_pattern")
        },
        alpha_pattern={
            name: _number(value, f"alpha_pattern of {name}")
            for name, value in _pattern(document, "alpha_pattern")
        },
        changes_some_layers=any(document.get(name) for name in some_layers),
    )


def _refuse_unsupported(document: Mapping[str, Any]) -> None:
    kind = document.get("peft_type", "LORA")
    if kind != "LORA":
        raise BadAdapterError(f"the adapter is of the kind {kind!r}; LORA alone is supported")
    for name, words in REFUSED_FLAGS.items():
        if document.get(name):
            raise BadAdapterError(f"the adapter has {words}, which is not supported")
    bias = document.get("bias", "none")
    if bias != "none":
        raise BadAdapterError(f"the adapter has bias {bias!r}; only 'none' is supported")
    how = document.get("init_lora_weights", True)
    if isinstance(how, str) and how.lower().startswith(CHANGES_BASE):
        raise BadAdapterError(
            f"the adapter was begun with init_lora_weights {how!r}, which changes the base model; "
            "convert it to a plain LoRA when saving it"
        )


def _pattern(document: Mapping[str, Any], field: str) -> list[tuple[str, Any]]:
    pattern = document.get(field) or {}
    if not isinstance(pattern, dict):
        raise BadAdapterError(f"{field} of adapter_config.json is not an object")
    for name in pattern:
        _check_expression(field, name)
    return list(pattern.items())


def _matching(pattern: Mapping[str, Any], name: str) -> str:
    """The first that the end of ``name`` matches; else ``name`` itself."""
    for key in pattern:
        if re.fullmatch(rf"(?:.*\.)?(?:{key})", name):
            return key
    return name


def _check_expression(field: str, expression: str) -> None:
    try:
        re.compile(expression)
    except re.error as error:
        raise BadAdapterError(f"{field} holds {expression!r}: {error}") from None


def _rank(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_RANK:
        raise BadAdapterError(f"{field} is {value!r}; a rank is from 1 to {MOST_RANK}")
    return value


def _number(value: object, field: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise BadAdapterError(f"{field} is {value!r}, which is not a number")
    if not abs(value) <= LARGEST_NUMBER:
        raise BadAdapterError(f"{field} is {value!r}, which is not a number")
    return float(value)

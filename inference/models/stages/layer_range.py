"""The layers of a stage, and its model as if those were all. Pure; imports no torch.

whole     0 1 2 3 | 4 5 6          model.layers.4.mlp… of the files
stage 1             0 1 2          is model.layers.0.mlp… of its own config
beside the layers: tables, the last norm, the tower: the first stage's
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inference.models.config import ModelConfig
from inference.models.errors import UnsplittableError
from inference.models.families.registry import family_of

IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class LayerRange:
    """``[first, last)``"""

    first: int
    last: int

    @property
    def is_first(self) -> bool:
        """Whether it has the embeddings and the output head beside its layers."""
        return self.first == 0

    def __len__(self) -> int:
        return self.last - self.first

    def __str__(self) -> str:
        """Formats the range for people, its last layer included."""
        return f"{self.first} to {self.last - 1}" if len(self) > 1 else str(self.first)

    def has_tensor(self, name: str) -> bool:
        """Whether the stage computes with the tensor of this name, of the whole model."""
        match = IN_LAYER.match(name)
        return self.is_first if match is None else self.first <= int(match[1]) < self.last

    def own_name(self, name: str) -> str | None:
        """The stage's name of the whole model's ``name``; ``None``: another stage's."""
        match = IN_LAYER.fullmatch(name)
        if match is None:
            return name if self.is_first else None
        index = int(match[1])
        in_stage = self.first <= index < self.last
        return f"model.layers.{index - self.first}.{match[2]}" if in_stage else None

    def whole_name(self, name: str) -> str:
        """The whole model's name of the stage's ``name``."""
        match = IN_LAYER.fullmatch(name)
        return name if match is None else f"model.layers.{int(match[1]) + self.first}.{match[2]}"


def check_ranges(config: ModelConfig, ranges: Sequence[LayerRange]) -> None:
    """Raises ``UnsplittableError`` where they are not the model's layers in order, or the model has
    no layers of ours."""
    if family_of(config).uses_transformers:
        raise UnsplittableError(
            f"{config.architecture} is computed by the transformers backend, which has no stages; "
            "load it on one device"
        )
    bounds = [0, *(one.last for one in ranges)]
    are_in_order = [one.first for one in ranges] == bounds[:-1] and all(map(len, ranges))
    if not are_in_order or bounds[-1] != config.num_layers:
        given = ", ".join(f"[{one.first}, {one.last})" for one in ranges)
        raise UnsplittableError(
            f"stages of the layers {given} are not the model's {config.num_layers} layers, each "
            f"once and in order: the first begins with 0, the last ends with {config.num_layers}"
        )


def stage_config(config: ModelConfig, *ranges: LayerRange) -> ModelConfig:
    """The model as if it had these layers alone, one after another."""
    indexes = [index for one in ranges for index in range(one.first, one.last)]
    mixers, mlps = config.mixer_kinds, config.mlp_kinds
    return replace(
        config,
        num_layers=len(indexes),
        mixers=tuple(mixers[index] for index in indexes),
        mlps=tuple(mlps[index] for index in indexes),
        layer_kv=tuple(config.layer_kv[index] for index in indexes if config.layer_kv),
        has_predictor=False,
    )

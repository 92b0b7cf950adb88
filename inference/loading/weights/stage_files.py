"""``TensorFiles`` of which one stage of a model reads its layers' tensors."""

from __future__ import annotations

from collections.abc import Collection

import torch

from inference.loading.weights.tensor_files import TensorFiles, fp8_weight, has_fp8
from inference.models.config import ModelConfig
from inference.models.errors import UnsplittableError
from inference.models.stages.layer_range import LayerRange, check_ranges
from inference.models.weights.stored import Fp8Weight, StoredWeight
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadSourceError


class StageFiles:
    """The tensors of a range of layers, by the whole model's names."""

    def __init__(self, files: TensorFiles, layers: LayerRange) -> None:
        self._files = files
        self._names = [name for name in files.names if layers.has_tensor(name)]

    @property
    def names(self) -> Collection[str]:
        return self._names

    def dense(self, name: str) -> torch.Tensor:
        return self._files.dense(name)

    def stored(self, name: str) -> StoredWeight:
        return self._files.stored(name)

    def stored_rows(self, name: str, first: int, last: int) -> StoredWeight:
        return self._files.stored_rows(name, first, last)

    def has_fp8(self, name: str) -> bool:
        return has_fp8(self._files, name)

    def fp8(self, name: str) -> Fp8Weight:
        found = fp8_weight(self._files, name)
        assert found is not None, "has_fp8 answers first"
        return found

    def format_of(self, name: str) -> str:
        return self._files.format_of(name)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._files.shape_of(name)

    def bytes_of(self, name: str) -> int:
        return self._files.bytes_of(name)

    def close(self) -> None:
        self._files.close()


def stage_ranges(spec: LoadSpec) -> list[LayerRange]:
    return [LayerRange(*stage.layers) for stage in spec.stages]


def layers_of_stage(spec: LoadSpec, config: ModelConfig, stage: int) -> LayerRange | None:
    """``None``: the model is not divided into stages. Raises ``BadSourceError`` where the stages
    are not the model's layers."""
    if not spec.stages:
        return None
    ranges = stage_ranges(spec)
    try:
        check_ranges(config, ranges)
    except UnsplittableError as error:
        raise BadSourceError(str(error)) from None
    return ranges[stage]

"""``TensorFiles`` that hold the part of one rank or one stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from gguf.constants import GGML_QUANT_SIZES

from inference.loading.formats import DENSE_FORMATS
from inference.loading.weights.tensor_files import FileTensor, TensorFiles
from inference.models.config import ModelConfig
from inference.models.errors import UnsplittableError
from inference.models.splits import (
    Cut,
    LayerRange,
    RankCuts,
    RankShare,
    check_groups,
    check_ranges,
    input_groups,
    rank_share,
)
from inference.models.stored_weights import (
    GROUP_FEATURES,
    DenseWeight,
    StoredWeight,
    with_tensors,
)
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadSourceError

_UNGROUPED = DENSE_FORMATS | {"fp8"}
_BLOCK_FEATURES: dict[str, int] = {
    type.name: features for type, (features, _) in GGML_QUANT_SIZES.items()
}


def rank_files(files: TensorFiles, cuts: RankCuts) -> TensorFiles:
    return TensorFiles(
        {
            name: RankTensor(tensor, cuts.cuts.get(name), is_zeroed=name in cuts.zeroed)
            for name, tensor in files.items()
            if name not in cuts.absent
        },
        files.close,
    )


class RankTensor(FileTensor):
    """A part is cut from the whole, so it has no reader. Blocks of scales are not cut: a part of
    fp8 is multiplied out."""

    def __init__(self, whole: FileTensor, cut: Cut | None, *, is_zeroed: bool) -> None:
        self._whole, self._cut, self._is_zeroed = whole, cut, is_zeroed
        self.format, self.shape = whole.format, whole.shape
        if cut is not None:
            self.shape = (*whole.shape[: cut.axis], cut.length, *whole.shape[cut.axis + 1 :])
        self.num_bytes = whole.num_bytes * math.prod(self.shape) // math.prod(whole.shape)

    def dense(self) -> torch.Tensor:
        tensor = self._whole.dense()
        if self._is_zeroed:
            return torch.zeros_like(tensor)
        return tensor if self._cut is None else cut_tensor(tensor, self._cut)

    def stored(self) -> StoredWeight:
        stored = self._whole.stored()
        return stored if self._cut is None else cut_weight(stored, self._cut)


def rank_shares(config: ModelConfig, files: TensorFiles, num_ranks: int) -> tuple[RankShare, ...]:
    """``files`` are whole. Empty for one rank. Raises ``BadSourceError`` for an uneven split."""
    if num_ranks == 1:
        return ()
    packed = packing_groups(files)
    groups = input_groups(config, packed)
    try:
        shares = tuple(rank_share(config, rank, num_ranks, groups) for rank in range(num_ranks))
        for share in shares:
            check_groups(config, share, packed)
    except UnsplittableError as error:
        raise BadSourceError(str(error)) from None
    return shares


def cut_weight(stored: StoredWeight, cut: Cut) -> StoredWeight:
    """``stored`` without a bias. Columns are cut at the ends of its groups, which the cut has."""
    if isinstance(stored, DenseWeight):
        return DenseWeight(weight=cut_tensor(stored.weight, cut))
    if cut.axis == 0:  # a view would keep the whole unpacked tensor
        return with_tensors(stored, lambda tensor: cut_tensor(tensor, cut).clone())
    in_features = stored.shape[1]

    def columns(tensor: torch.Tensor) -> torch.Tensor:
        group = in_features // tensor.shape[1]
        ranges = tuple((begin // group, end // group) for begin, end in cut.ranges)
        return cut_tensor(tensor, replace(cut, ranges=ranges))

    return with_tensors(stored, columns)


def cut_tensor(tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    """Rows that lie together are a view of the file; all else is copied."""
    parts = [tensor.narrow(cut.axis, begin, end - begin) for begin, end in cut.ranges]
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, dim=cut.axis)


def packing_groups(files: TensorFiles) -> Mapping[str, int]:
    """Inputs in one group of each packed weight, by name."""
    return {
        name: max(GROUP_FEATURES, _BLOCK_FEATURES.get(tensor.format, 0))
        for name, tensor in files.items()
        if tensor.format not in _UNGROUPED
    }


def stage_files(files: TensorFiles, layers: LayerRange) -> TensorFiles:
    own = {name: tensor for name, tensor in files.items() if layers.has_tensor(name)}
    return TensorFiles(own, files.close)


def stage_ranges(spec: LoadSpec) -> list[LayerRange]:
    return [LayerRange(*stage.layers) for stage in spec.stages]


def layers_of_stage(spec: LoadSpec, config: ModelConfig, stage: int) -> LayerRange | None:
    """Raises ``BadSourceError`` where the stages are not the model's layers."""
    if not spec.stages:
        return None
    ranges = stage_ranges(spec)
    try:
        check_ranges(config, ranges)
    except UnsplittableError as error:
        raise BadSourceError(str(error)) from None
    return ranges[stage]

"""An adapter's weights as a message to a stage's process, and back: byte for byte.

Backends compute with an adapter's matrices as they are, and native code reads them without looking
at their shapes. The engine may be another host's: what came is checked before it is used.
"""

from __future__ import annotations

import math

import torch

from inference.engine.children.step_frames import array_of, tensor_of
from inference.engine.stages.messages import AddAdapter, LowRankArrays
from inference.models.adapter import AdapterWeights, LowRank, adaptable_shapes
from inference.models.config import ModelConfig
from inference.models.errors import UnsupportedAdapterError

DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


def message_of_adapter(number: int, weights: AdapterWeights) -> AddAdapter:
    """``weights``: by the stage's own names."""
    modules = {
        name: LowRankArrays(array_of(one.down), array_of(one.up), one.scale)
        for name, one in weights.modules.items()
    }
    return AddAdapter(number=number, modules=modules)


def adapter_of(message: AddAdapter, config: ModelConfig) -> AdapterWeights:
    """``config``: of the stage's layers. Raises ``UnsupportedAdapterError`` for what no adapter of
    this stage is."""
    shapes = adaptable_shapes(config)
    modules = {}
    for name, arrays in message.modules.items():
        if name not in shapes:
            raise UnsupportedAdapterError(f"{name} is no weight of this stage that adapters change")
        try:
            one = LowRank(tensor_of(arrays.down), tensor_of(arrays.up), arrays.scale)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedAdapterError(f"{name}: it cannot be read ({error})") from error
        _check(name, one, shapes[name])
        modules[name] = one
    return AdapterWeights(modules)


def _check(name: str, one: LowRank, shape: tuple[int, int]) -> None:
    out_features, in_features = shape
    if not {one.down.dtype, one.up.dtype} <= DTYPES:
        raise UnsupportedAdapterError(f"{name}: it is of {one.down.dtype} and {one.up.dtype}")
    rank = one.down.shape[0] if one.down.ndim else 0
    if not rank or one.down.shape != (rank, in_features) or one.up.shape != (out_features, rank):
        raise UnsupportedAdapterError(
            f"{name}: {tuple(one.down.shape)} and {tuple(one.up.shape)} change no weight of "
            f"{out_features} x {in_features}"
        )
    if not math.isfinite(one.scale):
        raise UnsupportedAdapterError(f"{name}: its scale is {one.scale}")

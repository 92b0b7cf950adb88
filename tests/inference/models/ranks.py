"""Two ranks as two threads of this process, over gloo; and weights that are files to them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import distributed

from inference.loading.weights.opened_weights import OpenedWeights
from inference.loading.weights.tensor_files import FileTensor, TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.layers.linear import LinearFactory
from inference.models.ranks import TorchRankGroup
from inference.models.stored_weights import DenseWeight, PackedWeight, StoredWeight

CPU = torch.device("cpu")
TIMEOUT_S = 300.0

Result = TypeVar("Result")


class TwoRanks:
    """One group for all tests of a file."""

    def __init__(self) -> None:
        self.groups = [TorchRankGroup(rank, 2, CPU) for rank in (0, 1)]
        self._threads = ThreadPoolExecutor(2)
        self.join()

    def join(self) -> None:
        store = distributed.HashStore()
        self.run(lambda group: group.join(store, TIMEOUT_S))

    def run(self, work: Callable[[TorchRankGroup], Result]) -> list[Result]:
        """What both ranks made of it."""

        def of_rank(group: TorchRankGroup) -> Result:
            try:
                return work(group)
            except BaseException:
                group.drop()  # or the other would wait
                raise

        done = [self._threads.submit(of_rank, group) for group in self.groups]
        return [future.result() for future in done]

    def close(self) -> None:
        for group in self.groups:
            group.drop()
        self._threads.shutdown()


class MemoryTensor(FileTensor):
    def __init__(self, tensor: torch.Tensor, packed: PackedWeight | None = None) -> None:
        """``packed``: the weight as ``stored`` gives it."""
        self._tensor, self._packed = tensor, packed
        self.shape, self.num_bytes = tuple(tensor.shape), tensor.nbytes
        self.format = "F32" if packed is None else f"q{packed.bits}"

    def dense(self) -> torch.Tensor:
        return self._tensor

    def stored(self) -> StoredWeight:
        return self._packed or DenseWeight(weight=self._tensor.flatten(0, -2))


class MemoryFiles(TensorFiles):
    """``TensorFiles`` of tensors that are in memory already."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__({name: MemoryTensor(tensor) for name, tensor in tensors.items()})


def weights_of(files: TensorFiles) -> OpenedWeights:
    factory = LinearFactory(CPU, torch.float32, exact=True)
    return OpenedWeights(files, factory, lambda progress: None)


def random_tensors(config: ModelConfig) -> dict[str, torch.Tensor]:
    """All weights of a model of ``config``, large enough that a wrong part shows in the logits."""
    generator = torch.Generator().manual_seed(7)
    found: dict[str, torch.Tensor] = {}
    for tensor in family_of(config).tensors(config):
        values = torch.randn(tensor.shape, generator=generator)
        if len(tensor.shape) > 1:
            values *= 0.3
        if tensor.parts:
            found |= dict(zip(tensor.parts, values.unbind(0), strict=True))
        else:
            found[tensor.name] = values
    return found

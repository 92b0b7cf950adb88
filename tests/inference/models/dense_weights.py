"""Unquantised weights that are already in memory, by Hugging Face names; and a small config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import embedding

from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.layers.linear import DenseLinear
from inference.models.lazy_weights import LazyWeight, lazy, stack_lazy
from inference.models.stored_weights import DenseWeight
from inference.models.weight_source import DenseProduct

TINY = ModelConfig(
    architecture="llama",
    vocab_size=64,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=128,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)
CPU = torch.device("cpu")


class DenseEmbedding:
    def __init__(self, table: torch.Tensor) -> None:
        self._table = table

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        return embedding(token_ids, self._table)

    def as_linear(self) -> DenseLinear:
        return DenseLinear(self._table)


class DenseWeights:
    def __init__(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.activation_dtype = dtype
        self.device = device
        self._tensors = tensors

    def tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name].to(device=self.device, dtype=self.activation_dtype)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def linear(self, *names: str) -> DenseLinear:
        stacked = self._stacked(names)
        return DenseLinear(stacked.weight, stacked.bias)

    def grouped(self, experts: Sequence[Sequence[str]]) -> DenseProduct:
        return DenseProduct(torch.stack([self._stacked(names).weight for names in experts]))

    def stored(self, name: str) -> DenseWeight:
        return self._stacked([name])

    def stored_parts(self, *names: str) -> list[LazyWeight]:
        return [stack_lazy([lazy(self._stacked([name])) for name in names])]

    def _stacked(self, names: Sequence[str]) -> DenseWeight:
        weight = torch.cat([self.tensor(f"{name}.weight") for name in names])
        if not any(self.has(f"{name}.bias") for name in names):
            return DenseWeight(weight=weight)
        biases = [self.tensor(f"{name}.bias") for name in names]
        return DenseWeight(weight=weight, bias=torch.cat(biases))

    def embedding(self, name: str) -> DenseEmbedding:
        return DenseEmbedding(self.tensor(f"{name}.weight"))

    def all_tensors(self) -> dict[str, torch.Tensor]:
        dtype = self.activation_dtype
        return {
            name: tensor.to(dtype) if tensor.is_floating_point() else tensor
            for name, tensor in self._tensors.items()
        }

    def report(self) -> str:
        return f"dense {self.activation_dtype}"


def random_weights(
    config: ModelConfig, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> DenseWeights:
    """All that the family declares for ``config``."""
    generator = torch.Generator().manual_seed(7)
    return DenseWeights(
        {
            tensor.name: torch.randn(tensor.shape, generator=generator) * 0.3
            for tensor in family_of(config).tensors(config)
        },
        dtype,
        device,
    )

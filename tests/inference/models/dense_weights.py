"""Unquantised weights that are already in memory, by Hugging Face names; and a small config."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from inference.loading.weights.opened_weights import OpenedWeights
from inference.models.config import ModelConfig
from inference.models.layers.linear import LinearFactory
from tests.inference.models.ranks import CPU, MemoryFiles, random_tensors

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


class DenseWeights(OpenedWeights):
    def __init__(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.tensors = dict(tensors)
        factory = LinearFactory(device, dtype, exact=True)
        super().__init__(MemoryFiles(self.tensors), factory, lambda progress: None)


def random_weights(
    config: ModelConfig, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> DenseWeights:
    """All that the family declares for ``config``."""
    return DenseWeights(random_tensors(config), dtype, device)

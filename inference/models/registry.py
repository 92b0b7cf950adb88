"""Which file builds which architecture. A new family is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from inference.models.batch import DecodeBatch, PrefillBatch
from inference.models.config import ModelConfig
from inference.models.errors import UnknownArchitectureError
from inference.models.llama import LlamaModel
from inference.models.paged_kv import PagedKV
from inference.models.weights import WeightSource


class Model(Protocol):
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    kv_dtype: torch.dtype
    """What keys and values are best stored as here."""
    execution: str
    """For people: how its layers are run."""

    def new_kv(self, num_blocks: int, block_tokens: int, dtype: torch.dtype) -> PagedKV:
        """Room for the keys and values of ``num_blocks`` blocks, zeroed."""
        ...

    def decode(self, batch: DecodeBatch, kv: PagedKV) -> torch.Tensor:
        """Write the rows' keys and values, return their logits: (num_rows, vocab_size) float32."""
        ...

    def prefill(self, batch: PrefillBatch, kv: PagedKV) -> torch.Tensor:
        """Write all rows' keys and values, return ``batch.logit_rows``' logits:
        (num_logit_rows, vocab_size) float32."""
        ...


MODEL_BUILDERS: dict[str, Callable[[ModelConfig, WeightSource, int], Model]] = {
    "llama": LlamaModel,
    "mistral": LlamaModel,
    "qwen2": LlamaModel,
    "qwen3": LlamaModel,
}


def build_model(config: ModelConfig, weights: WeightSource, context_tokens: int) -> Model:
    """Raises ``UnknownArchitectureError``, naming the known ones."""
    builder = MODEL_BUILDERS.get(config.architecture)
    if builder is None:
        known = ", ".join(sorted(MODEL_BUILDERS))
        raise UnknownArchitectureError(f"{config.architecture!r} is not one of {known}")
    return builder(config, weights, context_tokens)

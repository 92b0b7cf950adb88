"""Which file builds which architecture. A new family is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from inference.models.batch import DecodeBatch, PrefillBatch
from inference.models.config import ModelConfig
from inference.models.errors import UnknownArchitectureError
from inference.models.llama import LlamaModel
from inference.models.native.build import NativeUnavailableError, load_library
from inference.models.native.decoder import unsupported_reason
from inference.models.native.llama import NativeLlama
from inference.models.weights import WeightSource

CPU_KV_DTYPE = torch.bfloat16
"""Of the native decoder: half the memory traffic of float32, and it computes in float32."""


class KVStorage(Protocol):
    """Tensors behind the blocks; their layout is the model's own business."""

    @property
    def block_tokens(self) -> int: ...


KV = TypeVar("KV", bound=KVStorage)


class Model(Protocol[KV]):
    """A decoder that can be stepped. Not thread-safe: the engine's owner thread calls it."""

    config: ModelConfig

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def kv_dtype(self) -> torch.dtype:
        """What keys and values are stored as, unless a caller of ``new_kv`` says otherwise."""
        ...

    def new_kv(self, num_blocks: int, block_tokens: int, dtype: torch.dtype) -> KV:
        """Room for the keys and values of ``num_blocks`` blocks, zeroed."""
        ...

    def decode(self, batch: DecodeBatch, kv: KV) -> torch.Tensor:
        """Write the rows' keys and values, return their logits: (num_rows, vocab_size) float32."""
        ...

    def prefill(self, batch: PrefillBatch, kv: KV) -> torch.Tensor:
        """Write all rows' keys and values, return ``batch.logit_rows``' logits:
        (num_logit_rows, vocab_size) float32."""
        ...


# Which KV storage a model wants is between its own methods; callers hand back what they got.
AnyModel = Model[Any]

TORCH_BUILDERS: dict[str, Callable[[ModelConfig, WeightSource, int], AnyModel]] = {
    "llama": LlamaModel,
    "mistral": LlamaModel,
    "qwen2": LlamaModel,
    "qwen3": LlamaModel,
}


def build_model(config: ModelConfig, weights: WeightSource, context_tokens: int) -> AnyModel:
    """On torch operators. Raises ``UnknownArchitectureError``, naming the known ones."""
    builder = TORCH_BUILDERS.get(config.architecture)
    if builder is None:
        known = ", ".join(sorted(TORCH_BUILDERS))
        raise UnknownArchitectureError(f"{config.architecture!r} is not one of {known}")
    return builder(config, weights, context_tokens)


def build_fastest_model(
    config: ModelConfig, weights: WeightSource, context_tokens: int, native_cache_dir: Path
) -> tuple[AnyModel, str]:
    """The native decoder where it can run, else torch; and in words which, and why not the other.
    Raises ``UnknownArchitectureError``."""
    if weights.device.type != "cpu":
        return build_model(config, weights, context_tokens), "torch operators"
    if weights.activation_dtype != torch.float32:
        reason: str | None = f"{weights.activation_dtype} was asked for".removeprefix("torch.")
    else:
        try:
            library = load_library(native_cache_dir)
            reason = unsupported_reason(config, library)
        except NativeUnavailableError as error:
            reason = str(error)
    if reason is not None or config.architecture not in TORCH_BUILDERS:
        return build_model(config, weights, context_tokens), f"torch operators: {reason}"
    model = NativeLlama(library, config, weights, context_tokens, CPU_KV_DTYPE)
    return model, "native decoder, compiled on this machine"

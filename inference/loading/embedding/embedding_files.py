"""An embedding model's directory before its weights are read: complete, counted, and sure to fit.

transformers reads the weights itself (``inference.models.embedding``); here only headers are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch

from inference.models.embedding_config import EmbeddingConfig
from inference.protocol.load import EarlierLoads
from inference.protocol.load_errors import BadFileError, DoesNotFitError

STEP_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Most token rows of one forward, padding included, unless a single input has more."""
HIDDEN_COPIES, INTERMEDIATE_COPIES = 8, 3
"""How many such vectors a layer holds at once for each token row, generously counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEmbeddingModel:
    config: EmbeddingConfig
    directory: Path
    tokenizer_dir: Path
    device: torch.device
    dtype: torch.dtype
    num_parameters: int
    weight_bytes: int
    """The bytes that the weights take in memory."""

    @property
    def step_tokens(self) -> int:
        return max(STEP_TOKENS[self.device.type], self.config.max_input_tokens)


def count_parameters(paths: Sequence[Path]) -> int:
    """Raises ``BadFileError``."""
    num_parameters = 0
    for path in paths:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                num_parameters += sum(math.prod(file.get_slice(n).get_shape()) for n in file.keys())  # noqa: SIM118
        except (safetensors.SafetensorError, OSError) as error:
            raise BadFileError(f"{path} is not a readable safetensors file: {error}") from None
    return num_parameters


def check_embedding_fits(
    opened: OpenedEmbeddingModel, free_bytes: int, earlier: EarlierLoads | None = None
) -> None:
    """Weights, the largest step, and what ``earlier`` loads on such a device took beyond. Raises
    ``DoesNotFitError`` with both numbers."""
    need_bytes = opened.weight_bytes + _step_bytes(opened)
    if earlier is not None:
        need_bytes = opened.weight_bytes + earlier.memory_correction_bytes
        if opened.device.type != "cuda":  # there a load runs the largest step, and measures it
            need_bytes += _step_bytes(opened)
    if need_bytes > free_bytes:
        raise DoesNotFitError(
            f"the model needs {need_bytes / 1e9:.2f} GB on {opened.device} (weights and a step of "
            f"{opened.step_tokens} tokens), and {free_bytes / 1e9:.2f} GB are free; unload another "
            "model, or load a smaller one",
            need_bytes,
        )


def _step_bytes(opened: OpenedEmbeddingModel) -> int:
    config = opened.config
    per_token = HIDDEN_COPIES * config.hidden_size + INTERMEDIATE_COPIES * config.intermediate_size
    mask_bytes = config.max_input_tokens**2
    return opened.step_tokens * per_token * opened.dtype.itemsize + mask_bytes

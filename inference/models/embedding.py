"""An embedding model on transformers: token ids in, one vector for each input out.

    ids, padded at their ends ─▶ encoder or decoder ─▶ pooled over the real tokens ─▶ length 1

The one file of this package that imports transformers: encoders are run as they are there, because
one forward for a whole input gains nothing from blocks, kernels or a scheduler of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from inference.models.embedding_config import EmbeddingConfig, Pooling
from inference.models.errors import MissingWeightsError

UNUSED = ("pooler.",)
"""Weights that some files lack, and that no pooling of ours reads."""


class EmbeddingModel:
    """Not thread-safe: the engine's owner thread calls it."""

    def __init__(
        self, directory: Path, config: EmbeddingConfig, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Reads the weights. Raises ``MissingWeightsError``."""
        from transformers import AutoModel  # takes seconds, and few engines need it
        from transformers.utils import logging

        self.config = config
        self.device = device
        logging.disable_progress_bar()
        model, told = AutoModel.from_pretrained(
            directory,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
        missing = sorted(name for name in told["missing_keys"] if not name.startswith(UNUSED))
        if missing:
            raise MissingWeightsError(
                f"the weight files lack {missing[0]}"
                + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            )
        model.config.use_cache = False
        self._model: Any = model.eval().to(device)

    @property
    def class_name(self) -> str:
        return type(self._model).__name__

    @torch.inference_mode()
    def embed(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """``prompts`` are int64 token ids, each at least one and at most ``max_input_tokens``.
        Returns (num_prompts, hidden_size) float32 on the CPU."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        token_ids = pad_sequence(
            list(prompts), batch_first=True, padding_value=self.config.pad_token_id
        )
        is_token = torch.arange(token_ids.shape[1]) < lengths[:, None]
        hidden = self._model(
            input_ids=token_ids.to(self.device),
            attention_mask=is_token.to(self.device, torch.int64),
        ).last_hidden_state
        vectors = pool(hidden, is_token.to(self.device), self.config.pooling)
        if self.config.normalize:
            vectors = normalize(vectors, dim=-1)
        return vectors.cpu()


def pool(hidden: torch.Tensor, is_token: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """``hidden`` (rows, tokens, size) of any float dtype, ``is_token`` (rows, tokens) bool with the
    padding at the end. Returns (rows, size) float32."""
    hidden = hidden.float()
    lengths = is_token.sum(dim=1)
    match pooling:
        case "cls":
            return hidden[:, 0]
        case "last":
            return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
        case "mean":
            return hidden.masked_fill(~is_token[..., None], 0.0).sum(dim=1) / lengths[:, None]
        case "max":
            return hidden.masked_fill(~is_token[..., None], -torch.inf).amax(dim=1)

"""An embedding model or reranker on transformers: token ids in, a vector or a score out.

    ids, padded at their ends ─▶ encoder or decoder ─▶ pooled over the real tokens ─▶ length 1
    ids of a pair of texts ────▶ cross-encoder ──────▶ its one number, activated

One forward for a whole input gains nothing from blocks, kernels or a scheduler of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from inference.models.config import EmbeddingConfig, Pooling
from inference.models.errors import MissingWeightsError, UnsupportedModuleError
from inference.models.transformers_backend.hub_module import named

UNUSED = ("pooler.",)
"""Weights that some files lack, and that no pooling of ours reads."""


def declared_shapes(
    directory: Path, config: EmbeddingConfig
) -> tuple[dict[str, tuple[int, ...]], str]:
    """Shapes by name, and the prefix that files may add. Raises ``UnsupportedModuleError``."""
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    kind = AutoModel if config.activation is None else AutoModelForSequenceClassification
    try:
        declared = AutoConfig.from_pretrained(directory, local_files_only=True)
        with torch.device("meta"):
            module = kind.from_config(declared)
    except Exception as error:
        raise UnsupportedModuleError(
            f"transformers builds no {config.architecture!r} of this config.json: "
            f"{type(error).__name__}: {error}"
        ) from error
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    return shapes, module.base_model_prefix


class EmbeddingModel:
    """Not thread-safe: the engine's owner thread calls it."""

    def __init__(
        self, directory: Path, config: EmbeddingConfig, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Raises ``MissingWeightsError``."""
        # Takes seconds, and few engines need it.
        from transformers import AutoModel, AutoModelForSequenceClassification
        from transformers.utils import logging

        self.config = config
        self.device = device
        logging.disable_progress_bar()
        kind = AutoModel if config.activation is None else AutoModelForSequenceClassification
        try:
            model, loading_info = kind.from_pretrained(
                directory,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except RuntimeError as error:
            raise MissingWeightsError(
                f"the weight files do not fit transformers' {config.architecture}: {error}"
            ) from error
        unused = UNUSED if config.activation is None else ()
        keys = loading_info["missing_keys"]
        missing = sorted(name for name in keys if not name.startswith(unused))
        if missing:
            raise MissingWeightsError(f"the weight files lack {named(missing, 1)}")
        model.config.use_cache = False
        self._model: Any = model.eval().to(device)

    @property
    def class_name(self) -> str:
        return type(self._model).__name__

    @torch.inference_mode()
    def embed(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """``prompts``: int64 token ids, 1 to ``max_input_tokens`` each. Returns (num_prompts,
        dimensions) float32 on the CPU."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        token_ids = pad_sequence(
            list(prompts), batch_first=True, padding_value=self.config.pad_token_id
        )
        is_token = torch.arange(token_ids.shape[1]) < lengths[:, None]
        inputs = {
            "input_ids": token_ids.to(self.device),
            "attention_mask": is_token.to(self.device, torch.int64),
        }
        is_token = is_token.to(self.device)
        if self.config.activation is not None:
            return self._scores(inputs, is_token).cpu()
        vectors = pool(self._model(**inputs).last_hidden_state, is_token, self.config.pooling)
        if self.config.normalize:
            vectors = normalize(vectors, dim=-1)
        return vectors.cpu()

    def _scores(self, inputs: dict[str, torch.Tensor], is_token: torch.Tensor) -> torch.Tensor:
        """(num_prompts, 1) float32."""
        model, separator = self._model, self.config.separator_token_id
        if separator is not None:
            inputs["token_type_ids"] = second_text(inputs["input_ids"], is_token, separator)
        if self.config.pooling == "last":
            # transformers would look for the last token that is not the padding's, which may be a
            # token of the text.
            hidden = getattr(model, model.base_model_prefix)(**inputs).last_hidden_state
            numbers = model.score(pool(hidden, is_token, "last").to(hidden.dtype))
        else:
            numbers = model(**inputs).logits
        scores: torch.Tensor = numbers.float()
        return scores.sigmoid() if self.config.activation == "sigmoid" else scores


def second_text(
    token_ids: torch.Tensor, is_token: torch.Tensor, separator_token_id: int
) -> torch.Tensor:
    """1 for the tokens behind each row's first separator, else 0; padding is 0. int64."""
    is_separator = (token_ids == separator_token_id).long()
    behind = is_separator.cumsum(dim=1) - is_separator > 0
    return (behind & is_token).long()


def pool(hidden: torch.Tensor, is_token: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """(rows, tokens, size) -> (rows, size) float32. ``is_token``: padding at the end."""
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

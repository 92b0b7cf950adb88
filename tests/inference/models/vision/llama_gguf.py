"""The text model of a checkpoint with a tower as llama.cpp's converter writes it, a llama or a
mistral."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import torch
from transformers import PreTrainedModel

from tests.inference.models.families import tiny_gguf

NESTED = ("model.text_model.", "model.language_model.")


def save_text(
    reference: PreTrainedModel,
    path: Path,
    named: dict[int, str],
    kind: gguf.MODEL_ARCH = gguf.MODEL_ARCH.LLAMA,
) -> Path:
    """``named``: the tokens of the vocabulary that are no numbers."""
    text = reference.config.get_text_config()

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in reference.state_dict().items():
            own = next((name.replace(p, "model.") for p in NESTED if name.startswith(p)), name)
            if own == name and name != "lm_head.weight":
                continue
            if own == "lm_head.weight" and reference.config.tie_word_embeddings:
                continue
            is_rotated = ".q_proj." in own or ".k_proj." in own
            yield own, tiny_gguf.in_pairs(tensor, text.head_dim) if is_rotated else tensor

    return tiny_gguf.write(path, kind, text, tensors(), named=named)

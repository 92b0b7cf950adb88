"""A tower's file as llama.cpp's converter writes it, and the file of the text model beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel

from tests.inference.models.families import parity, tiny_gguf
from tests.inference.models.families.rows import Row

Projector = tuple[dict[str, Any], Iterable[tuple[str, torch.Tensor]]]
"""Metadata by the part of a key after ``clip.``, and tensors by their names."""
EIGHT_BITS = gguf.GGMLQuantizationType.Q8_0
TEXT_MODEL = r"model\.(text|language)_model\."
NAMES = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 16)


def metadata_of(
    reference: PreTrainedModel, processor: Mapping[str, Any], **own: Any
) -> dict[str, Any]:
    """``own``: what a family adds, or declares in another way."""
    vision = reference.config.vision_config
    return {
        "has_vision_encoder": True,
        "vision.image_size": getattr(vision, "image_size", None),
        "vision.patch_size": vision.patch_size,
        "vision.embedding_length": vision.hidden_size,
        "vision.feed_forward_length": vision.intermediate_size,
        "vision.projection_dim": reference.config.text_config.hidden_size,
        "vision.block_count": getattr(vision, "num_hidden_layers", None),
        "vision.attention.head_count": getattr(vision, "num_attention_heads", None),
        "vision.attention.layer_norm_epsilon": getattr(vision, "layer_norm_eps", None),
        "vision.image_mean": processor["image_mean"],
        "vision.image_std": processor["image_std"],
    } | own


def tower_of(
    reference: PreTrainedModel,
    written: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]] = lambda *given: given,
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors beside the text model's. ``written``: how the converter calls one of a published
    checkpoint, and what it writes."""
    for name, tensor in reference.state_dict().items():
        if not re.match(f"{TEXT_MODEL}|lm_head", name):
            published, values = written(name, tensor)
            yield tiny_gguf.name_of(NAMES, published), values


def save(
    path: Path,
    projector: Projector,
    *,
    architecture: str = "clip",
    is_rounded: bool = False,
    renamed: Mapping[str, str] | None = None,
    **changes: Any,
) -> Path:
    """``is_rounded``: matrices in Q8_0, where their rows are whole blocks. ``renamed``: parts of
    tensors' names to replace. ``changes``: metadata to replace; ``None`` leaves a key out."""
    metadata, tensors = projector
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata | changes).items():
        if value is not None:
            # Whole numbers have the one type that llama.cpp reads.
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            kind = gguf.GGUFValueType.UINT32 if is_whole else gguf.GGUFValueType.get_type(value)
            writer.add_key_value(f"clip.{key}", value, kind)
    for name, tensor in tensors:
        written = ".".join((renamed or {}).get(part, part) for part in name.split("."))
        numbers = tensor.float().contiguous().numpy()
        if is_rounded and numbers.ndim == 2 and numbers.shape[1] % 32 == 0:
            writer.add_tensor(written, gguf.quantize(numbers, EIGHT_BITS), raw_dtype=EIGHT_BITS)
        else:
            writer.add_tensor(written, numbers)
    return tiny_gguf.close(writer, path)


LLAMA = Row(architecture="llama", interleaves=True)


def save_text(
    reference: PreTrainedModel,
    path: Path,
    named: dict[int, str],
    own: Row = LLAMA,
    **given: Any,
) -> Path:
    """``named``: the tokens of the vocabulary that are no numbers; ``given``: see
    ``tiny_gguf.write``."""
    state = {
        re.sub(TEXT_MODEL, "model.", name): tensor
        for name, tensor in reference.state_dict().items()
        if re.match(f"{TEXT_MODEL}|lm_head", name)
    }
    text = reference.config.get_text_config()
    return parity.save_text(own, text, state, path, named=named, **given)

"""A hybrid's weights as llama.cpp's converter writes them: names by the ``gguf`` package's own
table, norms with the one added, the rate of forgetting instead of its logarithm, and value heads by
turns of the key heads that they belong to."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel

from tests.inference.models.families import tiny_gguf
from tests.inference.models.families.tiny_gguf import Codes, Numbers

NESTED = "model.language_model."
ROUNDED_TO = gguf.GGMLQuantizationType.Q8_0
KINDS = {
    "qwen3_5": (gguf.MODEL_ARCH.QWEN35, True),
    "qwen3_5_moe": (gguf.MODEL_ARCH.QWEN35MOE, True),
    "qwen3_next": (gguf.MODEL_ARCH.QWEN3NEXT, False),
}
"""The architecture by model type, and whether heads of values lie by turns of the keys' heads."""
KEPT = (".visual.", "conv1d", "mlp.gate.", "shared_expert_gate", "ffn_gate_inp")
"""Parts of the names of matrices that files do not quantise."""
NEXTN = {
    "mtp.layers.0.": "model.layers.{}.",
    "mtp.fc.": "blk.{}.nextn.eh_proj.",
    "mtp.pre_fc_norm_embedding.": "blk.{}.nextn.enorm.",
    "mtp.pre_fc_norm_hidden.": "blk.{}.nextn.hnorm.",
    "mtp.norm.": "blk.{}.nextn.shared_head_norm.",
}
"""How names of a predictor begin, and what stands there instead."""


def save_gguf(
    reference: PreTrainedModel,
    path: Path,
    *,
    in_8_bits: bool = False,
    predictor: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """``predictor``: the tensors of a layer of multi-token prediction, by safetensors' names; none
    of a layer that is counted and left out."""
    kind, are_value_heads_tiled = KINDS[reference.config.model_type]
    text = reference.config.get_text_config()
    num_layers = text.num_hidden_layers
    num_predicting = 0 if predictor is None else 1
    own = {
        "block_count": num_layers + num_predicting,
        "nextn_predict_layers": num_predicting or None,
        "rope.dimension_count": int(text.head_dim * text.rope_parameters["partial_rotary_factor"]),
        "ssm.inner_size": text.linear_num_value_heads * text.linear_value_head_dim,
        "full_attention_interval": 4,
        "expert_weights_norm": None,
    }

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in (reference.state_dict() | dict(predictor or {})).items():
            for theirs, ours in NEXTN.items():
                name = name.replace(theirs, ours.format(num_layers))
            yield from _as_written(name, tensor, text, are_value_heads_tiled)

    def encoded(name: str, numbers: Numbers) -> tuple[Codes, gguf.GGMLQuantizationType] | None:
        if not in_8_bits or numbers.ndim == 1 or any(part in name for part in KEPT):
            return None
        return gguf.quantize(numbers, ROUNDED_TO), ROUNDED_TO

    image_token = getattr(reference.config, "image_token_id", None)
    named = {} if image_token is None else {image_token: "<|image_pad|>"}
    return tiny_gguf.write(path, kind, text, tensors(), own, encode=encoded, named=named)


def rounded(reference: PreTrainedModel) -> PreTrainedModel:
    """A copy whose matrices are what 8 bits keep of them."""
    copied = copy.deepcopy(reference)
    with torch.no_grad():
        for name, tensor in copied.state_dict().items():
            if tensor.dim() > 1 and not any(part in name for part in KEPT):
                codes = gguf.quantize(tensor.float().contiguous().numpy(), ROUNDED_TO)
                tensor.copy_(torch.from_numpy(gguf.dequantize(codes, ROUNDED_TO)))
    return copied


def _as_written(
    name: str, tensor: torch.Tensor, text: Any, are_value_heads_tiled: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    if ".visual." in name:
        return
    name = name.replace(NESTED, "model.")
    if ".experts." in name:
        yield from tiny_gguf.unstacked(name, tensor)
        return
    layer, _, own = name.rpartition(".linear_attn.")
    if not layer:
        is_norm = name.endswith("norm.weight")
        yield name, tensor + 1 if is_norm else tensor
        return
    key_heads, value_heads = text.linear_num_key_heads, text.linear_num_value_heads
    num_keys = 2 * key_heads * text.linear_key_head_dim

    def tiled(values: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """Value heads by turns of their key heads, along ``dim``."""
        if not are_value_heads_tiled:
            return values
        group = value_heads // key_heads
        rows = values.movedim(dim, 0)
        rows = rows.reshape(key_heads, group, -1, *rows.shape[1:]).transpose(0, 1)
        return rows.reshape(-1, *rows.shape[3:]).movedim(0, dim)

    prefix = f"{layer}.linear_attn."
    if own == "A_log":
        yield prefix + own, tiled(-tensor.exp())
    elif own == "dt_bias":
        yield f"{prefix}dt_proj.bias", tiled(tensor)
    elif own == "conv1d.weight":
        channels = tensor.squeeze(1)
        yield prefix + own, torch.cat((channels[:num_keys], tiled(channels[num_keys:])))
    elif own == "in_proj_qkv.weight":
        yield prefix + own, torch.cat((tensor[:num_keys], tiled(tensor[num_keys:])))
    elif own in ("in_proj_z.weight", "in_proj_a.weight", "in_proj_b.weight"):
        yield prefix + own, tiled(tensor)
    elif own == "out_proj.weight":
        yield prefix + own, tiled(tensor, dim=1)
    elif own == "in_proj_qkvz.weight":
        yield from _plain_qkvz(prefix, tensor, text)
    else:
        yield prefix + own, tensor


def _plain_qkvz(prefix: str, tensor: torch.Tensor, text: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """What goes from key head to key head, one kind after the other."""
    group = text.linear_num_value_heads // text.linear_num_key_heads
    sizes = [text.linear_key_head_dim] * 2 + [group * text.linear_value_head_dim] * 2
    grouped = tensor.view(text.linear_num_key_heads, -1, tensor.shape[1])
    *qkv, z = (part.flatten(0, 1) for part in grouped.split(sizes, dim=1))
    yield f"{prefix}in_proj_qkv.weight", torch.cat(qkv)
    yield f"{prefix}in_proj_z.weight", z

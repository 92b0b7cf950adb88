"""A hybrid's weights as llama.cpp's converter writes them: names by the ``gguf`` package's own
table, norms with the one added, the rate of forgetting instead of its logarithm, and value heads by
turns of the key heads that they belong to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from tests.inference.models.families import tiny_gguf

NESTED = "model.language_model."
ROUNDED_TO = gguf.GGMLQuantizationType.Q8_0
Numbers = npt.NDArray[np.float32]
Codes = npt.NDArray[np.generic]
Encode = Callable[[str, Numbers], tuple[Codes, gguf.GGMLQuantizationType]]
"""Encodes a tensor by its GGUF name."""
KINDS = {
    "qwen3_5": (gguf.MODEL_ARCH.QWEN35, True),
    "qwen3_5_moe": (gguf.MODEL_ARCH.QWEN35MOE, True),
    "qwen3_next": (gguf.MODEL_ARCH.QWEN3NEXT, False),
}
"""The architecture by model type, and whether heads of values lie by turns of the keys' heads."""
KEPT = (".visual.", "conv1d", "mlp.gate.", "shared_expert_gate")


def save_gguf(
    reference: PreTrainedModel,
    path: Path,
    *,
    encode: Encode | None = None,
    predictor: Mapping[str, torch.Tensor] | None = None,
) -> Path:
    """``encode``: how the matrices are written that files quantise. ``predictor``: the tensors of
    a layer of multi-token prediction, by safetensors' names; none of a layer that is counted
    and left out."""
    arch, are_value_heads_tiled = KINDS[reference.config.model_type]
    text = reference.config.get_text_config()
    num_layers, added = text.num_hidden_layers, predictor or {}
    num_predicting = 0 if predictor is None else 1
    names = gguf.get_tensor_name_map(arch, num_layers + 1)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _add_keys(writer, text, num_layers + num_predicting)
    if num_predicting:
        writer.add_nextn_predict_layers(num_predicting)
    add_vocabulary(writer, reference)
    for name, tensor in (*reference.state_dict().items(), *added.items()):
        own = name.replace("mtp.layers.0.", f"model.layers.{num_layers}.")
        for written, values in _as_written(own, tensor, text, are_value_heads_tiled):
            known = _nextn_name(written, num_layers) or tiny_gguf.name_of(names, written)
            numbers = values.float().contiguous().numpy()
            if encode is not None and _is_rounded(name, tensor):
                codes, format = encode(known, numbers)
                writer.add_tensor(known, codes, raw_dtype=format)
            else:
                writer.add_tensor(known, numbers)
    return tiny_gguf.close(writer, path)


NEXTN = {
    "mtp.fc": gguf.MODEL_TENSOR.NEXTN_EH_PROJ,
    "mtp.pre_fc_norm_embedding": gguf.MODEL_TENSOR.NEXTN_ENORM,
    "mtp.pre_fc_norm_hidden": gguf.MODEL_TENSOR.NEXTN_HNORM,
    "mtp.norm": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
}


def _nextn_name(name: str, layer: int) -> str | None:
    stem, _, kind = name.rpartition(".")
    return f"{gguf.TENSOR_NAMES[NEXTN[stem]].format(bid=layer)}.{kind}" if stem in NEXTN else None


def in_8_bits(name: str, numbers: Numbers) -> tuple[Codes, gguf.GGMLQuantizationType]:
    return gguf.quantize(numbers, ROUNDED_TO), ROUNDED_TO


def rounded(reference: PreTrainedModel) -> PreTrainedModel:
    """A copy whose matrices are what ``in_8_bits`` keeps of them."""
    copied = copy.deepcopy(reference)
    with torch.no_grad():
        for name, tensor in copied.state_dict().items():
            if _is_rounded(name, tensor):
                codes = gguf.quantize(tensor.float().contiguous().numpy(), ROUNDED_TO)
                tensor.copy_(torch.from_numpy(gguf.dequantize(codes, ROUNDED_TO)))
    return copied


def _is_rounded(name: str, tensor: torch.Tensor) -> bool:
    return tensor.dim() > 1 and not any(part in name for part in KEPT)


def _add_keys(writer: gguf.GGUFWriter, text: Any, num_blocks: int) -> None:
    rope = text.rope_parameters
    tiny_gguf.add_sizes(writer, text, num_blocks)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(text.head_dim * rope["partial_rotary_factor"]))
    writer.add_ssm_conv_kernel(text.linear_conv_kernel_dim)
    writer.add_ssm_state_size(text.linear_key_head_dim)
    writer.add_ssm_group_count(text.linear_num_key_heads)
    writer.add_ssm_time_step_rank(text.linear_num_value_heads)
    writer.add_ssm_inner_size(text.linear_num_value_heads * text.linear_value_head_dim)
    writer.add_full_attention_interval(4)
    if sections := rope.get("mrope_section"):
        writer.add_rope_dimension_sections([*sections, 0])
    if getattr(text, "num_experts", None):
        writer.add_expert_count(text.num_experts)
        writer.add_expert_used_count(text.num_experts_per_tok)
        writer.add_expert_feed_forward_length(text.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(text.shared_expert_intermediate_size)


def add_vocabulary(writer: gguf.GGUFWriter, reference: PreTrainedModel) -> None:
    """A token for each number, and the one that stands for an image where the model has one."""
    size = reference.config.get_text_config().vocab_size
    image_token = getattr(reference.config, "image_token_id", None)
    named = {} if image_token is None else {image_token: "<|image_pad|>"}
    tiny_gguf.add_vocabulary(writer, size, named)


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
        is_norm = name.endswith("norm.weight") or ".pre_fc_norm_" in name
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

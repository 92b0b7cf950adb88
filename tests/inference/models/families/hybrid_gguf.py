"""A hybrid's weights as llama.cpp's converter writes them: names by the ``gguf`` package's own
table, norms with the one added, the rate of forgetting instead of its logarithm, and value heads by
turns of the key heads that they belong to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

NESTED = "model.language_model."
ROUNDED_TO = gguf.GGMLQuantizationType.Q8_0
Numbers = npt.NDArray[np.float32]
Codes = npt.NDArray[np.generic]
Encode = Callable[[str, Numbers], tuple[Codes, gguf.GGMLQuantizationType]]
"""By GGUF's name."""
KEPT = (".visual.", "conv1d", "mlp.gate.", "shared_expert_gate")


def save_gguf(
    reference: PreTrainedModel,
    path: Path,
    arch: gguf.MODEL_ARCH,
    *,
    are_value_heads_tiled: bool,
    encode: Encode | None = None,
) -> Path:
    """``encode``: how the matrices are written that files quantise."""
    text = reference.config.get_text_config()
    names = gguf.get_tensor_name_map(arch, text.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _add_keys(writer, text)
    for name, tensor in reference.state_dict().items():
        for written, values in _as_written(name, tensor, text, are_value_heads_tiled):
            known = names.get_name(written, try_suffixes=(".weight", ".bias"))
            assert known is not None, written
            numbers = values.float().contiguous().numpy()
            if encode is not None and _is_rounded(name, tensor):
                codes, format = encode(known, numbers)
                writer.add_tensor(known, codes, raw_dtype=format)
            else:
                writer.add_tensor(known, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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


def _add_keys(writer: gguf.GGUFWriter, text: Any) -> None:
    rope = text.rope_parameters
    writer.add_context_length(text.max_position_embeddings)
    writer.add_embedding_length(text.hidden_size)
    writer.add_block_count(text.num_hidden_layers)
    if getattr(text, "intermediate_size", None):
        writer.add_feed_forward_length(text.intermediate_size)
    writer.add_head_count(text.num_attention_heads)
    writer.add_head_count_kv(text.num_key_value_heads)
    writer.add_key_length(text.head_dim)
    writer.add_value_length(text.head_dim)
    writer.add_layer_norm_rms_eps(text.rms_norm_eps)
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
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([str(token) for token in range(text.vocab_size)])
    writer.add_token_merges(["1 2"])


def _as_written(
    name: str, tensor: torch.Tensor, text: Any, are_value_heads_tiled: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    if ".visual." in name:
        return
    name = name.replace(NESTED, "model.")
    if name.endswith(".experts.gate_up_proj"):
        for part, values in zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1), strict=True):
            yield f"{name.replace('gate_up_proj', part)}.weight", values
        return
    if name.endswith(".experts.down_proj"):
        yield f"{name}.weight", tensor
        return
    layer, _, own = name.rpartition(".linear_attn.")
    if not layer:
        yield name, tensor + 1 if name.endswith("norm.weight") else tensor
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

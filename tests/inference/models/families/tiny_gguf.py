"""Writes tiny GGUF files as llama.cpp's converter does: names by the ``gguf`` package's own tables,
and keys by one table from transformers' config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

Numbers = npt.NDArray[np.float32]
Codes = npt.NDArray[np.generic]
Encode = Callable[[str, Numbers], tuple[Codes, gguf.GGMLQuantizationType] | None]
"""Encodes a tensor by its GGUF name; ``None``: it is written in float32."""
Types = Mapping[str, gguf.GGMLQuantizationType]
KEYS: dict[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "attention.scale": ("attention_multiplier",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logit_scale", "logits_scaling"),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "ssm.conv_kernel": ("linear_conv_kernel_dim", "mamba_d_conv"),
    "ssm.state_size": ("linear_key_head_dim", "mamba_d_state"),
    "ssm.group_count": ("linear_num_key_heads", "mamba_n_groups"),
    "ssm.time_step_rank": ("linear_num_value_heads", "mamba_n_heads"),
    "shortconv.l_cache": ("conv_L_cache",),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "expert_used_count": ("num_experts_per_tok", "moe_k", "moe_topk"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_count": ("n_shared_experts", "moe_num_shared_experts"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "leading_dense_block_count": ("first_k_dense_replace", "num_dense_layers"),
}
"""GGUF's keys under the architecture, and what transformers' configs call them."""


def keys_of(config: Any) -> dict[str, Any]:
    """``config``: of a text model."""
    found = {
        key: value
        for key, names in KEYS.items()
        for name in names
        if (value := getattr(config, name, None)) is not None
    }
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention", rope)
    head_dim = getattr(config, "head_dim", None) or (
        config.hidden_size // config.num_attention_heads
    )
    rotated = getattr(config, "rotary_dim", None) or (
        head_dim * rope.get("partial_rotary_factor", 1.0)
    )
    found |= {"rope.freq_base": float(rope.get("rope_theta") or 10_000.0)}
    if rotated < head_dim:
        found["rope.dimension_count"] = int(rotated)
    if (kind := rope.get("rope_type")) in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        trained = rope["original_max_position_embeddings"]
        found["rope.scaling.original_context_length"] = trained
    if sections := rope.get("mrope_section"):
        found["rope.dimension_sections"] = [*sections, 0]
    return found


def write(
    path: Path,
    kind: gguf.MODEL_ARCH,
    config: Any,
    tensors: Iterable[tuple[str, torch.Tensor]],
    keys: Mapping[str, Any] | None = None,
    *,
    encode: Encode = lambda name, numbers: None,
    named: Mapping[int, str] | None = None,
    control: tuple[str, ...] = ("<", "["),
) -> Path:
    """``tensors``: by transformers' names, or by GGUF's own. ``keys``: instead of those that follow
    from ``config``; ``None`` leaves one out. ``named``: see ``add_vocabulary``."""
    architecture = gguf.MODEL_ARCH_NAMES[kind]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (keys_of(config) | dict(keys or {})).items():
        if value is not None:
            add_key(writer, f"{architecture}.{key}", value)
    add_vocabulary(writer, config.vocab_size, named or {}, control=control)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers + 1)
    for name, tensor in tensors:
        if name == "lm_head.weight" and getattr(config, "tie_word_embeddings", False):
            continue
        known = name if name.startswith("blk.") else name_of(names, name)
        numbers = tensor.float().contiguous().numpy()
        if (encoded := encode(known, numbers)) is None:
            writer.add_tensor(known, numbers)
        else:
            writer.add_tensor(known, encoded[0], raw_dtype=encoded[1])
    return close(writer, path)


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Whole numbers without a sign, as llama.cpp wants them."""
    kind = gguf.GGUFValueType.get_type(value)
    is_whole = kind is gguf.GGUFValueType.INT32
    writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if is_whole else kind)


def add_vocabulary(
    writer: gguf.GGUFWriter,
    size: int,
    named: Mapping[int, str],
    *,
    control: tuple[str, ...] = ("<", "["),
) -> None:
    """A token for each number, but for those of ``named``. ``control``: how control tokens
    begin."""
    tokens = [named.get(token, str(token)) for token in range(size)]
    kinds = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([kinds[token.startswith(control)] for token in tokens])
    writer.add_token_merges(["1 2"])


def name_of(names: gguf.TensorNameMap, name: str) -> str:
    """What a file calls a tensor of transformers' model."""
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def in_pairs(values: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Orders rows as llama.cpp's converter writes a llama's queries and keys."""
    halves = values.reshape(-1, 2, head_dim // 2, *values.shape[1:])
    return halves.transpose(1, 2).reshape(values.shape)


def in_types(types: Types | None) -> Encode:
    """Encodes matrices by a part of their names; none without ``types``."""

    def encode(name: str, numbers: Numbers) -> tuple[Codes, gguf.GGMLQuantizationType] | None:
        type = next((type for part, type in (types or {}).items() if part in name), None)
        if type is None or numbers.ndim == 1:
            return None
        return gguf.quantize(numbers, type), type

    return encode


def unstacked(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """A stack of experts with gates apart from what goes up; any other tensor as it is."""
    if name.endswith("experts.gate_up_proj"):
        for part, values in zip(("gate_proj", "up_proj"), tensor.chunk(2, dim=1), strict=True):
            yield name.replace("gate_up_proj", f"{part}.weight"), values
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", tensor
    else:
        yield name, tensor


def close(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Writes all that was added to ``path``, which the writer was made with."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

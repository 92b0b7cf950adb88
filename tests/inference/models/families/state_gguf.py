"""Weights of ``tiny_states`` as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel

from tests.inference.models.families import tiny_gguf


def save_lfm2(reference: PreTrainedModel, path: Path) -> Path:
    own, kind = _heads(reference.config), gguf.MODEL_ARCH.LFM2
    if reference.config.model_type == "lfm2_moe":
        kind = gguf.MODEL_ARCH.LFM2MOE
        own["expert_gating_func"] = gguf.ExpertGatingFuncType.SIGMOID.value
    else:
        own["feed_forward_length"] = reference.model.layers[0].feed_forward.w1.out_features
    return tiny_gguf.write(path, kind, reference.config, _lfm2_tensors(reference), own)


def save_granite4(reference: PreTrainedModel, path: Path) -> Path:
    config = reference.config
    shared = config.shared_intermediate_size
    own: dict[str, Any] = _heads(config) | {
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "rope.scaling.finetuned": config.position_embedding_type == "rope",
        "ssm.inner_size": config.mamba_n_heads * config.mamba_d_head,
    }
    if config.num_local_experts:
        own["expert_shared_feed_forward_length"] = shared
    else:
        own |= {"expert_count": None, "expert_used_count": None, "feed_forward_length": shared}
    tensors = _granite4_tensors(reference)
    return tiny_gguf.write(path, gguf.MODEL_ARCH.GRANITE_HYBRID, config, tensors, own)


def _heads(config: Any) -> dict[str, Any]:
    """Files list the heads of keys by layer."""
    kinds = [kind == "full_attention" for kind in config.layer_types]
    return {"attention.head_count_kv": [config.num_key_value_heads * kind for kind in kinds]}


def _granite4_tensors(reference: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Gates stand apart from what goes up."""
    config = reference.config
    head_dim = config.hidden_size // config.num_attention_heads
    shared = "mlp.shared_expert" if config.num_local_experts else "mlp"
    for name, tensor in reference.state_dict().items():
        layer, _, own = name.rpartition(".mamba.")
        name = name.replace("shared_mlp.output_linear", f"{shared}.down_proj")
        name = name.replace("block_sparse_moe.router.layer", "mlp.gate")
        if layer:
            written = "dt_proj.bias" if own == "dt_bias" else own
            yield f"{layer}.mamba.{written}", _mamba_tensor(own, tensor, config)
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            yield name, tiny_gguf.in_pairs(tensor, head_dim)
        elif name.endswith("shared_mlp.input_linear.weight"):
            for part, values in zip(("gate_proj", "up_proj"), tensor.chunk(2), strict=True):
                yield name.replace("shared_mlp.input_linear", f"{shared}.{part}"), values
        else:
            yield from tiny_gguf.unstacked(name.replace("block_sparse_moe", "mlp"), tensor)


def _mamba_tensor(own: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    if own == "A_log":
        return -tensor.exp().view(-1, 1)
    if own == "D":
        return tensor.view(-1, 1)
    if own == "norm.weight":
        return tensor.view(config.mamba_n_groups, -1)
    return tensor.squeeze(1) if own == "conv1d.weight" else tensor


def _lfm2_tensors(reference: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    parts = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    for name, tensor in reference.state_dict().items():
        if name.endswith(".conv.conv.weight"):
            yield name, tensor.squeeze(1)
        elif ".experts." in name:
            for stacked, values in tiny_gguf.unstacked(name.removeprefix("model."), tensor):
                stem, _, part = stacked.removesuffix(".weight").rpartition(".")
                yield f"{stem}.{parts[part]}.weight", values
        elif name.endswith("expert_bias"):
            yield f"{name}.bias", tensor
        else:
            yield name, tensor

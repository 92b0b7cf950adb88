"""Weights of ``tiny_states`` as llama.cpp's converter writes them: names by the ``gguf`` package's
own table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import PreTrainedModel

from tests.inference.models.families import tiny_gguf


def save_lfm2(reference: PreTrainedModel, path: Path) -> Path:
    config = reference.config
    writer = gguf.GGUFWriter(path, "lfm2")
    _add_lfm2_keys(writer, config)
    (width,) = {mlp.w1.out_features for mlp in _mlps(reference)}
    writer.add_feed_forward_length(width)
    return _write(writer, path, gguf.MODEL_ARCH.LFM2, reference, _lfm2_tensors(reference))


def save_lfm2_moe(reference: PreTrainedModel, path: Path) -> Path:
    config = reference.config
    writer = gguf.GGUFWriter(path, "lfm2moe")
    _add_lfm2_keys(writer, config)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_expert_count(config.num_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_leading_dense_block_count(config.num_dense_layers)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    return _write(writer, path, gguf.MODEL_ARCH.LFM2MOE, reference, _lfm2_tensors(reference))


def save_granite4(reference: PreTrainedModel, path: Path) -> Path:
    config = reference.config
    writer = gguf.GGUFWriter(path, "granitehybrid")
    add_common_keys(writer, config)
    is_attention = [kind == "full_attention" for kind in config.layer_types]
    writer.add_head_count_kv([config.num_key_value_heads * kind for kind in is_attention])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)
    writer.add_ssm_conv_kernel(config.mamba_d_conv)
    writer.add_ssm_state_size(config.mamba_d_state)
    writer.add_ssm_group_count(config.mamba_n_groups)
    writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
    writer.add_ssm_time_step_rank(config.mamba_n_heads)
    if config.num_local_experts:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
    else:
        writer.add_feed_forward_length(config.shared_intermediate_size)
    tensors = _granite4_tensors(reference)
    return _write(writer, path, gguf.MODEL_ARCH.GRANITE_HYBRID, reference, tensors)


def _granite4_tensors(reference: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    config = reference.config
    head_dim = config.hidden_size // config.num_attention_heads
    for name, tensor in reference.state_dict().items():
        layer, _, own = name.rpartition(".mamba.")
        if layer:
            yield f"{layer}.mamba.{_MAMBA_NAMES.get(own, own)}", _mamba_tensor(own, tensor, config)
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            halves = tensor.view(-1, 2, head_dim // 2, config.hidden_size)
            yield name, halves.transpose(1, 2).reshape(tensor.shape)
        elif ".shared_mlp." in name or ".block_sparse_moe." in name:
            yield from _granite4_mlp(name, tensor, is_sparse=bool(config.num_local_experts))
        else:
            yield name, tensor


_MAMBA_NAMES = {"dt_bias": "dt_proj.bias"}


def _mamba_tensor(own: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    if own == "A_log":
        return -tensor.exp().view(-1, 1)
    if own == "D":
        return tensor.view(-1, 1)
    if own == "norm.weight":
        return tensor.view(config.mamba_n_groups, -1)
    return tensor.squeeze(1) if own == "conv1d.weight" else tensor


def _granite4_mlp(
    name: str, tensor: torch.Tensor, *, is_sparse: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """Gates apart from what goes up."""
    layer = name.split(".shared_mlp.")[0].split(".block_sparse_moe.")[0]
    shared = f"{layer}.mlp.shared_expert" if is_sparse else f"{layer}.mlp"
    if name.endswith("shared_mlp.input_linear.weight"):
        gates, ups = tensor.chunk(2)
        yield f"{shared}.gate_proj.weight", gates
        yield f"{shared}.up_proj.weight", ups
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield f"{shared}.down_proj.weight", tensor
    elif ".experts." in name:
        yield from tiny_gguf.unstacked(name.replace(".block_sparse_moe.", ".mlp."), tensor)
    else:
        yield f"{layer}.mlp.gate.weight", tensor


def _mlps(reference: PreTrainedModel) -> list[Any]:
    return [layer.feed_forward for layer in reference.model.layers]


def _add_lfm2_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    is_attention = [kind == "full_attention" for kind in config.layer_types]
    add_common_keys(writer, config)
    writer.add_head_count_kv([config.num_key_value_heads * kind for kind in is_attention])
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_shortconv_l_cache(config.conv_L_cache)


def add_common_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([str(token) for token in range(config.vocab_size)])
    writer.add_token_merges(["1 2"])


def _lfm2_tensors(reference: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in reference.state_dict().items():
        stacked = name.removeprefix("model.")
        if name.endswith(".conv.conv.weight"):
            yield name, tensor.squeeze(1)
        elif name.endswith("experts.gate_up_proj"):
            gates, ups = tensor.chunk(2, dim=1)
            yield stacked.replace("gate_up_proj", "w1.weight"), gates
            yield stacked.replace("gate_up_proj", "w3.weight"), ups
        elif name.endswith("experts.down_proj"):
            yield stacked.replace("down_proj", "w2.weight"), tensor
        elif name.endswith("expert_bias"):
            yield f"{name}.bias", tensor
        else:
            yield name, tensor


def _write(
    writer: gguf.GGUFWriter,
    path: Path,
    arch: gguf.MODEL_ARCH,
    reference: PreTrainedModel,
    tensors: Iterator[tuple[str, torch.Tensor]],
) -> Path:
    """Writes the file, with a table that is the output head as well, where the model's is."""
    config = reference.config
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, values in tensors:
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        numbers = values.float().contiguous().numpy()
        writer.add_tensor(tiny_gguf.name_of(names, name), numbers)
    return tiny_gguf.close(writer, path)

"""Small models whose files bring a layer of multi-token prediction: the files, with random weights,
and that layer by its formula or as transformers' own module."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu
from transformers import PreTrainedModel
from transformers.models.glm4_moe import Glm4MoeConfig, Glm4MoeForCausalLM

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import predictor_tensors
from inference.models.families.registry import family_of
from tests.inference.loading.conftest import SIZES
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families.hybrid_gguf import save_gguf
from tests.inference.models.families.mixtures import CASES, written

Weights = dict[str, torch.Tensor]
"""The weights by the names that the model has for them."""

NEXTN = {
    "mtp.embed_tokens.weight": "embed_tokens.weight",
    "mtp.pre_fc_norm_embedding.weight": "enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "hnorm.weight",
    "mtp.fc.weight": "eh_proj.weight",
    "mtp.norm.weight": "shared_head.norm.weight",
    "mtp.head.weight": "shared_head.head.weight",
}
"""What GLM's files call it, within a layer."""


GLM4_MOE = {
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "attention_bias": True,
}


@dataclass(frozen=True)
class Kind:
    save: Callable[[Path], Path]
    hidden: Callable[[torch.Tensor], torch.Tensor]
    """What transformers' head reads, of token ids (1, num_tokens)."""
    layer: Callable[[ModelConfig, Weights, torch.Tensor], torch.Tensor]
    """(num_tokens, hidden_size), token i at position i, through the layer."""
    norm_offset: float
    """Added to the weights of norms."""


def weights_of(directory: Path, config: ModelConfig) -> Weights:
    family = family_of(config)
    assert family.predictor_name is not None
    return {
        family.predictor_name(family.hub_name(name), config): weight
        for name, weight in load_file(directory / "model.safetensors").items()
    }


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def save_qwen3_5(directory: Path) -> Path:
    return save_hybrid(tiny.qwen3_5(), directory)


def save_hybrid(reference: PreTrainedModel, directory: Path) -> Path:
    """Its files have neither a table nor a head for the predictor."""
    tiny.save(reference, directory)
    config = tiny.opened(directory, directory / "cache").config
    prefix = f"model.layers.{config.num_layers}."
    added: Weights = {}
    torch.manual_seed(3)
    for tensor in predictor_tensors(config):
        if not tensor.is_optional:
            name = tensor.name.replace(prefix, "mtp.layers.0.")
            added[name] = torch.randn(tensor.shape) * (0.3 if len(tensor.shape) > 1 else 0.2)
    return _with(directory, added)


def save_hybrid_gguf(reference: PreTrainedModel, directory: Path) -> Path:
    """What ``save_hybrid`` has saved in ``directory``, as a GGUF file in a folder there."""
    weights = load_file(directory / "model.safetensors")
    return save_gguf(
        reference,
        _gguf_folder(directory) / "model.gguf",
        predictor={name: tensor for name, tensor in weights.items() if name.startswith("mtp.")},
    )


def save_glm4_moe_gguf(directory: Path) -> Path:
    """What ``save_glm4_moe`` has saved in ``directory``, as a GGUF file in a folder there."""
    sizes = {name: tiny.TEXT[name] for name in SIZES if name in tiny.TEXT}
    own = {**GLM4_MOE, **sizes, "num_hidden_layers": 2, "rms_norm_eps": 1e-6}
    case = replace(CASES["glm4_moe"], overrides=own)
    file = _gguf_folder(directory) / "model.gguf"
    return written(case, directory, file, num_predicting=1)


def _gguf_folder(directory: Path) -> Path:
    folder = directory / "gguf"
    folder.mkdir()
    shutil.copy(directory / "tokenizer.json", folder)
    return folder


def save_glm4_moe(directory: Path) -> Path:
    """The predictor layer is transformers' own, one layer more than config.json declares."""
    tiny.save(glm4_moe(), directory)
    config = tiny.opened(directory, directory / "cache").config
    added: Weights = {}
    torch.manual_seed(4)
    for tensor in predictor_tensors(config):
        if (own := NEXTN.get(tensor.name)) is not None:
            weight = torch.randn(tensor.shape) * 0.3
            is_norm = len(tensor.shape) == 1
            added[f"model.layers.{config.num_layers}.{own}"] = 1 + weight if is_norm else weight
    return _with(directory, added)


def _with(directory: Path, added: Weights) -> Path:
    file = directory / "model.safetensors"
    save_file(load_file(file) | added, file, {"format": "pt"})
    return directory


@functools.cache
def glm4_moe() -> PreTrainedModel:
    """Makes a model with a layer more than it runs. It must not be changed: it is shared."""
    torch.manual_seed(10)
    own = GLM4_MOE | {
        "rope_parameters": tiny.ROPE,
        "attn_implementation": "eager",
        "num_hidden_layers": 3,
        "pad_token_id": 0,
    }
    text = {name: size for name, size in tiny.TEXT.items() if not name.startswith("linear_")}
    reference = Glm4MoeForCausalLM(Glm4MoeConfig(**(text | own)))
    for name, weight in (*reference.named_parameters(), *reference.named_buffers()):
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    reference.config.num_hidden_layers = 2
    return reference.eval()


@torch.no_grad()
def _glm_hidden(token_ids: torch.Tensor) -> torch.Tensor:
    found = glm4_moe().model(token_ids).last_hidden_state[0]
    assert isinstance(found, torch.Tensor)
    return found


@torch.no_grad()
def _glm_layer(config: ModelConfig, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    model, places = glm4_moe().model, torch.arange(len(x)).unsqueeze(0)
    later = torch.full((len(x), len(x)), float("-inf")).triu(1)
    found = model.layers[config.num_layers](
        x.unsqueeze(0),
        attention_mask=later.view(1, 1, len(x), len(x)),
        position_ids=places,
        position_embeddings=model.rotary_emb(x.unsqueeze(0), places),
    )
    assert isinstance(found, torch.Tensor)
    return found[0]


@torch.no_grad()
def _qwen_hidden(token_ids: torch.Tensor) -> torch.Tensor:
    found = tiny.qwen3_5().model.language_model(token_ids).last_hidden_state[0]
    assert isinstance(found, torch.Tensor)
    return found


def _rotated(heads: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """(num_tokens, heads, head_dim), token i at position i; the first features of each head."""
    dim = config.rotary_dim or config.head_dim
    frequencies = config.rope_theta ** -(torch.arange(0, dim, 2) / dim)
    angles = torch.outer(torch.arange(len(heads)), frequencies).unsqueeze(1)
    left, right, rest = heads.split([dim // 2, dim // 2, config.head_dim - dim], dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((left * cos - right * sin, right * cos + left * sin, rest), dim=-1)


def _qwen_layer(config: ModelConfig, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    layer = f"model.layers.{config.num_layers}."

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return rms(x, 1 + weights[f"{layer}{name}.weight"], config.rms_norm_eps)

    def product(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ weights[f"{layer}{name}.weight"].T

    normed, count, dim = norm(x, "input_layernorm"), len(x), config.head_dim
    gated = product(normed, "self_attn.q_proj").view(count, config.num_heads, 2 * dim)
    queries, gate = gated.split(dim, dim=-1)
    keys = product(normed, "self_attn.k_proj").view(count, config.num_kv_heads, dim)
    values = product(normed, "self_attn.v_proj").view(count, config.num_kv_heads, dim)
    queries = _rotated(norm(queries, "self_attn.q_norm"), config)
    keys = _rotated(norm(keys, "self_attn.k_norm"), config)
    keys, values = (
        part.repeat_interleave(config.num_query_groups, dim=1) for part in (keys, values)
    )
    scores = torch.einsum("ihd,jhd->hij", queries, keys) / dim**0.5
    later = torch.ones(count, count, dtype=torch.bool).triu(1)
    attended = torch.einsum(
        "hij,jhd->ihd", scores.masked_fill(later, float("-inf")).softmax(-1), values
    )
    x = x + product((attended * gate.sigmoid()).flatten(1), "self_attn.o_proj")
    normed = norm(x, "post_attention_layernorm")
    inner = silu(product(normed, "mlp.gate_proj")) * product(normed, "mlp.up_proj")
    return x + product(inner, "mlp.down_proj")


KINDS = {
    "qwen3_5": Kind(save_qwen3_5, _qwen_hidden, _qwen_layer, norm_offset=1),
    "glm4_moe": Kind(save_glm4_moe, _glm_hidden, _glm_layer, norm_offset=0),
}

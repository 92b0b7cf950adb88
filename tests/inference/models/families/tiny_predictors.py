"""Small models whose files bring a layer of multi-token prediction: the files, with random weights,
and that layer as transformers' own module."""

from __future__ import annotations

import copy
import functools
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.models.glm4_moe import Glm4MoeConfig, Glm4MoeForCausalLM

from inference.models.config import ModelConfig
from inference.models.families.decoder_tensors import predictor_tensors
from inference.models.families.registry import family_of
from tests.inference.models.families import hybrid_gguf, parity
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families.mixtures import GLM, SIGMOID
from tests.inference.models.families.rows import Row

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


def weights_of(directory: Path, config: ModelConfig) -> Weights:
    family = family_of(config)
    return {
        family.predictor_name(family.hub_name(name), config): weight
        for name, weight in load_file(directory / "model.safetensors").items()
    }


def save(name: str, directory: Path) -> Path:
    """A hybrid's files have neither a table nor a head for the predictor. GLM's layer is
    transformers' own, one layer more than config.json declares."""
    tiny.save(glm4_moe() if name == "glm4_moe" else tiny.reference_of(name), directory)
    config = tiny.opened(directory, directory / "cache").config
    layer = f"model.layers.{config.num_layers}."
    added: Weights = {}
    torch.manual_seed(3)
    for tensor in predictor_tensors(config):
        weight = torch.randn(tensor.shape) * 0.3
        if name != "glm4_moe":
            if not tensor.is_optional:
                added[tensor.name.replace(layer, "mtp.layers.0.")] = weight
        elif tensor.name in NEXTN:
            added[layer + NEXTN[tensor.name]] = weight + (len(tensor.shape) == 1)
    file = directory / "model.safetensors"
    save_file(load_file(file) | added, file, {"format": "pt"})
    return directory


def save_gguf(name: str, directory: Path) -> Path:
    """What ``save`` has saved in ``directory``, as a GGUF file in a folder there."""
    (directory / "gguf").mkdir()
    path = directory / "gguf" / "model.gguf"
    shutil.copy(directory / "tokenizer.json", path.parent)
    prefixes = ("mtp.", *(f"model.layers.2.{own}" for own in NEXTN.values()))
    weights = load_file(directory / "model.safetensors")
    added = {own: weight for own, weight in weights.items() if own.startswith(prefixes)}
    if name != "glm4_moe":
        return hybrid_gguf.save_gguf(tiny.reference_of(name), path, predictor=added)
    keys = SIGMOID | {"block_count": 3, "nextn_predict_layers": 1}
    row = Row("glm4_moe", GLM, "glm4moe", keys=keys)
    return parity.save_gguf(row, glm4_moe(), path, added=added)


@functools.cache
def glm4_moe() -> PreTrainedModel:
    """Makes a model with a layer more than it runs. It must not be changed: it is shared."""
    torch.manual_seed(10)
    own = GLM | {
        "attention_bias": True,
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


NAMES = (*tiny.CONFIGS, "glm4_moe")
KINDS = ("qwen3_5", "glm4_moe")


def text_model(name: str) -> torch.nn.Module:
    return glm4_moe().model if name == "glm4_moe" else tiny.qwen3_5().model.language_model


@torch.no_grad()
def run_layer(name: str, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """(num_tokens, hidden_size), token i at position i, through transformers' layer."""
    if name == "glm4_moe":
        layer = glm4_moe().model.layers[2]
    else:  # a layer with attention, of these weights
        layer, prefix = copy.deepcopy(text_model(name).layers[-1]), "model.layers.4."
        own = {name.removeprefix(prefix): weights[name] for name in weights if prefix in name}
        layer.load_state_dict(own)
    places = torch.arange(len(x)).unsqueeze(0)
    later = torch.full((len(x), len(x)), float("-inf")).triu(1)
    return layer(
        x.unsqueeze(0),
        attention_mask=later.view(1, 1, len(x), len(x)),
        position_ids=places,
        position_embeddings=text_model(name).rotary_emb(x.unsqueeze(0), places),
    )[0]

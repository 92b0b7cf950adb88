"""Hybrids of a few numbers, as transformers builds them, saves them and runs them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)

from inference.engine.engine import Engine
from inference.models.adapter import AdapterWeights
from inference.models.backend import AnyModel
from inference.models.kv_format import KVFormat
from inference.models.native.model import NativeModel
from inference.models.step_input import ALL_ROWS, NUM_LONE_STATES, StepInput
from tests.inference.models.families import parity

VOCAB_SIZE = 128
CONTEXT_TOKENS = 256
BLOCK_TOKENS = 8
NATIVE_BLOCK_TOKENS = 32

ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
TEXT = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_TOKENS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "rope_parameters": ROPE | {"mrope_section": [2, 1, 1], "mrope_interleaved": True},
}
SPARSE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "patch_size": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 4,
}


def randomised(reference: PreTrainedModel) -> PreTrainedModel:
    """Returns the model with norms that do something."""
    for name, parameter in reference.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, -0.5, 0.5)
    return reference.eval()


SPARSE_TEXT = {key: value for key, value in TEXT.items() if key != "intermediate_size"} | SPARSE
CONFIGS: dict[str, tuple[int, dict[str, Any]]] = {
    "qwen3_5": (7, {"text_config": TEXT, "vision_config": VISION}),
    "qwen3_5_moe": (8, {"text_config": SPARSE_TEXT, "vision_config": VISION}),
    "qwen3_next": (9, TEXT | SPARSE | {"rope_parameters": ROPE}),
}
"""Seeds and configs by model type. The first two have a vision tower."""


def built(model_type: str, seed: int, own: dict[str, Any]) -> PreTrainedModel:
    torch.manual_seed(seed)
    given = {"attn_implementation": "eager", "pad_token_id": 0} | deepcopy(own)
    config = AutoConfig.for_model(model_type, **given)
    kind = AutoModelForImageTextToText if "vision_config" in own else AutoModelForCausalLM
    return randomised(kind.from_config(config, dtype=torch.float32))


@functools.cache
def reference_of(model_type: str) -> PreTrainedModel:
    """Makes a model that must not be changed: it is shared."""
    return built(model_type, *CONFIGS[model_type])


def maker(build: Callable[[str], PreTrainedModel], name: str) -> Callable[[], PreTrainedModel]:
    """A function of this name that builds the model of this name."""

    def make() -> PreTrainedModel:
        return build(name)

    make.__name__ = name
    return make


qwen3_5, qwen3_5_moe, qwen3_next = (maker(reference_of, name) for name in CONFIGS)


def save(reference: PreTrainedModel, directory: Path) -> Path:
    """Saves a checkpoint, with a tokenizer that has a token for each character."""
    reference.save_pretrained(directory)
    return save_tokenizer(directory)


def save_tokenizer(directory: Path) -> Path:
    vocabulary = {chr(token): token for token in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=chr(0)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


opened, run, submit = parity.opened, parity.run, parity.submit


def on_torch(source: Path, cache_dir: Path) -> AnyModel:
    return parity.built_on_torch(source, cache_dir, CONTEXT_TOKENS)


def natively(
    library: ctypes.CDLL, source: Path, cache_dir: Path, kv_format: KVFormat = "fp32"
) -> NativeModel:
    return parity.natively(library, source, cache_dir, kv_format, CONTEXT_TOKENS)


def engine_of(model: AnyModel, **given: Any) -> Engine:
    """``given``: see ``parity.engine_of``."""
    usual = {"num_kv_blocks": 128, "prefill_tokens_per_step": 512}
    return parity.engine_of(model, context_tokens=CONTEXT_TOKENS, **usual | given)


@torch.inference_mode()
def logits_of(
    model: AnyModel, prompt: list[int], adapter: AdapterWeights | None = None
) -> torch.Tensor:
    """Returns the logits of all of its tokens."""
    kv = model.new_kv(8, NATIVE_BLOCK_TOKENS, NUM_LONE_STATES)
    step = StepInput.of_sequence(prompt, NATIVE_BLOCK_TOKENS, logit_rows=ALL_ROWS)
    if adapter is not None:
        step = replace(step, adapters=(model.prepare_adapter(adapter),))
    return model.forward(step, kv)

"""Tiny models on disk: a Hugging Face directory, and the same weights as GGUF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gguf_files import random_blocks
from inference.loading.formats import GGUF_FORMATS
from inference.loading.loader import OpenedModel, open_model
from inference.protocol.load import LoadSpec
from tests.inference.models.families import tiny_gguf

NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
SIZES: dict[str, Any] = (
    {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": NUM_LAYERS}
    | {"num_attention_heads": NUM_HEADS, "num_key_value_heads": NUM_KV_HEADS, "head_dim": 16}
    | {"max_position_embeddings": 128, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2}
)


RANDOM_VALUE = 0.04
"""Root mean square of random weights in formats that gguf cannot make."""
QUANTISED_TYPES = frozenset(
    GGMLQuantizationType[type.name] for type in GGUF_FORMATS if type.native is not None
)


@pytest.fixture
def tiny_directory(tmp_path: Path) -> Path:
    return save_directory(tmp_path / "tiny", "llama")


@pytest.fixture
def tiny_weights(tiny_directory: Path) -> dict[str, torch.Tensor]:
    return load_file(tiny_directory / "model.safetensors")


@pytest.fixture
def tiny_file(tmp_path: Path, tiny_weights: dict[str, torch.Tensor]) -> Path:
    """The tiny model as GGUF."""
    return save_gguf(tmp_path / "tiny.gguf", tiny_weights)


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(directory: Path, changes: Mapping[str, torch.Tensor | None]) -> None:
    """``None`` takes a tensor out."""
    (path,) = directory.glob("*.safetensors")
    tensors = load_file(path) | changes
    save_file({k: v for k, v in tensors.items() if v is not None}, path, {"format": "pt"})


def save_directory(directory: Path, model_type: str, **overrides: Any) -> Path:
    """A random model as transformers saves it, with a tokenizer.json of single letters."""
    torch.manual_seed(11)
    config = AutoConfig.for_model(
        model_type, **(SIZES | {"tie_word_embeddings": False} | overrides)
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    tokenizer = Tokenizer(models.BPE(vocab={chr(65 + i): i for i in range(26)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def saved_gguf(
    folder: Path,
    model_type: str = "llama",
    *,
    types: dict[str, GGMLQuantizationType] | None = None,
    **overrides: Any,
) -> Path:
    """A random model's GGUF file; that model lies beside it, in ``hf``."""
    weights = load_file(
        save_directory(folder / "hf", model_type, **overrides) / "model.safetensors"
    )
    path = folder / f"{model_type}.gguf"
    return save_gguf(path, weights, model_type, types=types, sizes=SIZES | overrides)


def save_gguf(
    path: Path,
    weights: dict[str, torch.Tensor],
    architecture: str = "llama",
    types: dict[str, GGMLQuantizationType] | None = None,
    metadata: dict[str, Any] | None = None,
    sizes: dict[str, Any] = SIZES,
) -> Path:
    """The same weights as llama.cpp's converter writes them: its names, its order of rotary rows.
    ``types``: by Hugging Face name, where not float32."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(sizes["num_key_value_heads"])
    writer.add_key_length(sizes["head_dim"])
    writer.add_layer_norm_rms_eps(sizes["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    _add_vocabulary(writer)
    for key, value in (metadata or {}).items():
        tiny_gguf.add_key(writer, key, value)
    for name, weight in weights.items():
        values = weight.float().numpy()
        heads = NUM_HEADS if "q_proj" in name else NUM_KV_HEADS if "k_proj" in name else None
        if architecture == "llama" and heads is not None:
            values = _interleaved(values, heads)
        type = (types or {}).get(name, GGMLQuantizationType.F32)
        writer.add_tensor(gguf_name(name, architecture), blocks_of(values, type), raw_dtype=type)
    return tiny_gguf.close(writer, path)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", *(chr(0x100 + i) for i in range(58))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * 61)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def blocks_of(values: np.ndarray, type: GGMLQuantizationType) -> np.ndarray:
    """The values in a format, or random blocks of as many where gguf cannot make it."""
    try:
        return gguf.quantize(values, type)
    except NotImplementedError:
        return random_blocks(np.random.default_rng(3), type, values.shape, RANDOM_VALUE)


@cache
def _names_of(architecture: str) -> gguf.TensorNameMap:
    (kind,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(kind, 64)


def gguf_name(name: str, architecture: str = "llama") -> str:
    """By gguf's own tables, where the architecture's own lacks it by those of others."""
    stem, _, kind = name.rpartition(".")
    tables = map(_names_of, (architecture, "llama", "qwen2moe", "glm4moe"))
    return f"{next(filter(None, (names.get_name(stem) for names in tables)))}.{kind}"


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def opened(path: Path, cache_dir: Path, **changes: Any) -> OpenedModel:
    """``changes``: of the load spec."""
    given: dict[str, Any] = {"devices": ["cpu"], "source": f"path:{path}"} | changes
    spec = LoadSpec(job_id="1", model="tiny", **given)
    found = open_model(spec, cache_dir, lambda progress: None)
    assert isinstance(found, OpenedModel)
    return found

"""Tiny models on disk: a Hugging Face directory, and the same weights as GGUF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
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
from inference.loading.loader import open_model
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


@pytest.fixture(autouse=True)
def no_cache_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "HF_TOKEN", "HELEXA_HF_CACHE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tiny_directory(tmp_path: Path) -> Path:
    return save_directory(tmp_path / "tiny", "llama")


@pytest.fixture
def tiny_file(tiny_directory: Path) -> Path:
    """The tiny model as GGUF."""
    weights = load_file(tiny_directory / "model.safetensors")
    return save_gguf(tiny_directory.parent / "tiny.gguf", weights)


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
    keys = tiny_gguf.keys_of(SimpleNamespace(**sizes))
    own = {f"{architecture}.{key}": value for key, value in keys.items()}
    for key, value in (own | (metadata or {})).items():
        tiny_gguf.add_key(writer, key, value)
    tiny_gguf.add_vocabulary(writer, 64, dict(enumerate(("<unk>", "<s>", "</s>", "1", "2"))))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in weights.items():
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            weight = tiny_gguf.in_pairs(weight, sizes["head_dim"])
        type = (types or {}).get(name, GGMLQuantizationType.F32)
        blocks = blocks_of(weight.float().numpy(), type)
        writer.add_tensor(gguf_name(name, architecture), blocks, raw_dtype=type)
    return tiny_gguf.close(writer, path)


def blocks_of(values: np.ndarray, type: GGMLQuantizationType) -> np.ndarray:
    """The values in a format, or random blocks of as many where gguf cannot make it."""
    try:
        return gguf.quantize(values, type)
    except NotImplementedError:
        return random_blocks(np.random.default_rng(3), type, values.shape, RANDOM_VALUE)


def values_of(tensor: gguf.ReaderTensor, num_heads: int, num_kv_heads: int) -> torch.Tensor:
    """As gguf dequantises it; a llama's queries and keys in transformers' order of rows."""
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    if heads := {"attn_q": num_heads, "attn_k": num_kv_heads}.get(tensor.name.split(".")[-2]):
        pairs = values.reshape(heads, -1, 2, values.shape[-1])
        values = pairs.swapaxes(1, 2).reshape(values.shape)
    return torch.tensor(values, dtype=torch.float32)


@cache
def _names_of(architecture: str) -> gguf.TensorNameMap:
    (kind,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(kind, 64)


def gguf_name(name: str, architecture: str = "llama") -> str:
    """By gguf's own tables, where the architecture's own lacks it by those of others."""
    stem, _, kind = name.rpartition(".")
    tables = map(_names_of, (architecture, "llama", "qwen2moe", "glm4moe"))
    return f"{next(filter(None, (names.get_name(stem) for names in tables)))}.{kind}"


def opened(path: Path, cache_dir: Path, *, rank: int = 0, **changes: Any) -> Any:
    """Returns an ``OpenedModel`` or an ``OpenedEmbeddingModel``. ``changes``: of the load spec."""
    given: dict[str, Any] = {"devices": ["cpu"], "source": f"path:{path}"} | changes
    spec = LoadSpec(job_id="1", model="tiny", **given)
    return open_model(spec, cache_dir, lambda progress: None, rank=rank)

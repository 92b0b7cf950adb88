"""The small models whose files are mutated: a file or a directory each, of several families and
formats. Files beside a load's own ones (an adapter's base) lie in ``base``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from gguf.constants import GGMLQuantizationType as Type
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertModel

from tests.inference.adapter_files import write_adapter
from tests.inference.loading.conftest import SIZES, save_directory, save_gguf
from tests.inference.loading.weights import test_packed_files as packed
from tests.inference.models.families import hybrid_gguf, mixtures, state_gguf, test_gpt_oss
from tests.inference.models.families import tiny_hybrid as hybrids
from tests.inference.models.families import tiny_states as states

Kind = Literal["gguf", "safetensors", "embedding", "adapter"]
BASE = "base"
MODEL = "model"


@dataclass(frozen=True, slots=True)
class Subject:
    kind: Kind
    save: Callable[[Path], Path]
    """Writes it into a folder, and returns the source of a load."""


def _llama_gguf(folder: Path, types: dict[str, Type], **changes: object) -> Path:
    directory = save_directory(folder / "dense", "llama", **changes)
    weights = load_file(directory / "model.safetensors")
    return save_gguf(folder / "model.gguf", weights, types=types, sizes=SIZES | changes)


def _packed_llama(folder: Path) -> Path:
    wide = {"hidden_size": 256, "intermediate_size": 256}
    names = (*(f"self_attn.{name}_proj" for name in "qkv"), "mlp.gate_proj", "mlp.up_proj")
    kinds = (Type.Q4_K, Type.Q6_K, Type.Q8_0, Type.Q4_0, Type.Q5_1)
    own = dict(zip(names, kinds, strict=True)) | {"mlp.down_proj": Type.Q3_K}
    types = {f"model.layers.{i}.{name}.weight": own[name] for i in range(2) for name in own}
    return _llama_gguf(folder, types | {"model.embed_tokens.weight": Type.Q8_0}, **wide)


def _mixture_gguf(case: str, folder: Path) -> Path:
    found = mixtures.CASES[case]
    mixtures.reference_of(found).save_pretrained(folder / "dense")
    return mixtures.written(found, folder / "dense", folder / "model.gguf")


def _state_gguf(save: Callable[[Any, Path], Path], build: Callable[[], Any]) -> Subject:
    def saved(folder: Path) -> Path:
        hybrids.save_tokenizer(folder)
        return save(build(), folder / "model.gguf")

    return Subject("gguf", saved)


def _hybrid(build: Callable[[], Any]) -> Subject:
    return Subject("safetensors", lambda folder: hybrids.save(build(), folder / MODEL))


def _directory(model_type: str, folder: Path, **overrides: object) -> Path:
    return save_directory(folder / MODEL, model_type, **overrides)


def _packed_directory(case: str, folder: Path) -> Path:
    packed.saved(case, folder / MODEL)
    return hybrids.save_tokenizer(folder / MODEL)


def _gpt_oss(folder: Path) -> Path:
    reference = test_gpt_oss.reference_of(test_gpt_oss.ROW)
    test_gpt_oss.save_mxfp4(reference, folder / MODEL)
    return hybrids.save_tokenizer(folder / MODEL)


def _bert(folder: Path) -> Path:
    torch.manual_seed(4)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = BertConfig(vocab_size=64, num_attention_heads=2, max_position_embeddings=64, **sizes)
    BertModel(config).save_pretrained(folder / MODEL)
    tokenizer = Tokenizer(models.WordLevel({chr(65 + i): i for i in range(26)}, unk_token="A"))
    tokenizer.save(str(folder / MODEL / "tokenizer.json"))
    return folder / MODEL


def _adapter(folder: Path) -> Path:
    base = save_directory(folder / BASE, "llama")
    write_adapter(folder / MODEL, load_file(base / "model.safetensors"), seed=1)
    return folder / MODEL


ROPES = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}}
FOUR_HEADS, STATE = {"num_key_value_heads": 4}, {"state_size": 8}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SUBJECTS: dict[str, Subject] = {
    "llama.gguf": Subject("gguf", partial(_llama_gguf, types={})),
    "packed llama.gguf": Subject("gguf", _packed_llama),
    "qwen3moe.gguf": Subject("gguf", partial(_mixture_gguf, "qwen3_moe")),
    "glm4moe.gguf": Subject("gguf", partial(_mixture_gguf, "glm4_moe")),
    "qwen3next.gguf": _state_gguf(hybrid_gguf.save_gguf, hybrids.qwen3_next),
    "lfm2.gguf": _state_gguf(state_gguf.save_lfm2, states.lfm2),
    "granite4.gguf": _state_gguf(state_gguf.save_granite4, states.granite4),
    "llama": Subject("safetensors", partial(_directory, "llama", **ROPES)),
    "gemma2": Subject("safetensors", partial(_directory, "gemma2", query_pre_attn_scalar=16)),
    "phi3": Subject("safetensors", partial(_directory, "phi3", pad_token_id=0)),
    "qwen3_moe": Subject("safetensors", partial(_directory, "qwen3_moe", **EXPERTS)),
    "qwen3_5": _hybrid(hybrids.qwen3_5),
    "granite4": _hybrid(states.granite4),
    "lfm2_moe": _hybrid(states.lfm2_moe),
    "awq": Subject("safetensors", partial(_packed_directory, "awq")),
    "gptq": Subject("safetensors", partial(_packed_directory, "gptq, ordered by activation")),
    "compressed": Subject("safetensors", partial(_packed_directory, "packed, with zeros")),
    "fp8": Subject("safetensors", partial(_packed_directory, "fp8 of blocks")),
    "mxfp4": Subject("safetensors", _gpt_oss),
    "a transformers module": Subject("safetensors", partial(_directory, "gpt_neox", **FOUR_HEADS)),
    "a transformers module with its cache": Subject(
        "safetensors", partial(_directory, "mamba", **STATE)
    ),
    "bert": Subject("embedding", _bert),
    "adapter": Subject("adapter", _adapter),
}
SLOW = frozenset({"a transformers module", "a transformers module with its cache", "bert"})
"""What takes transformers a tenth of a second for each case."""

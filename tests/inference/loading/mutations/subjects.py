"""The small models whose files are mutated: a file or a directory each, of several families and
formats. An adapter's base lies beside it in ``base``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gguf.constants import GGMLQuantizationType as Type
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertModel

from tests.inference.adapter_files import write_adapter
from tests.inference.loading.conftest import save_directory, saved_gguf
from tests.inference.loading.weights import test_packed_files as packed
from tests.inference.models.families import hybrid_gguf, mixtures, state_gguf, test_gpt_oss
from tests.inference.models.families import tiny_hybrid as hybrids
from tests.inference.models.families import tiny_states as states

Save = Callable[[Path], Path]
"""Writes a model into a folder, and returns the source of a load."""
MODEL = "model"


def _packed_gguf(folder: Path) -> Path:
    names = load_file(saved_gguf(folder, **WIDE).parent / "hf" / "model.safetensors")
    own = {name: KINDS[part] for name in names for part in KINDS if f".{part}." in name}
    types = {name: Type[kind] for name, kind in own.items()}
    return saved_gguf(folder, types=types, **WIDE)


def _mixture_gguf(case: str, folder: Path) -> Path:
    found = mixtures.CASES[case]
    mixtures.reference_of(found).save_pretrained(folder / "dense")
    return mixtures.written(found, folder / "dense", folder / "model.gguf")


def _state_gguf(save: Callable[[Any, Path], Path], build: Callable[[], Any]) -> Save:
    def saved(folder: Path) -> Path:
        hybrids.save_tokenizer(folder)
        return save(build(), folder / "model.gguf")

    return saved


def _hybrid(build: Callable[[], Any]) -> Save:
    return lambda folder: hybrids.save(build(), folder / MODEL)


def _directory(model_type: str, **overrides: object) -> Save:
    return lambda folder: save_directory(folder / MODEL, model_type, **overrides)


def _packed(case: str, folder: Path) -> Path:
    packed.saved(case, folder / MODEL)
    return hybrids.save_tokenizer(folder / MODEL)


def _gpt_oss(folder: Path) -> Path:
    test_gpt_oss.save_mxfp4(test_gpt_oss.reference_of(test_gpt_oss.ROW), folder / MODEL)
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
    base = save_directory(folder / "base", "llama")
    write_adapter(folder / MODEL, load_file(base / "model.safetensors"), seed=1)
    return folder / MODEL


KINDS = {"q_proj": "Q4_K", "k_proj": "Q6_K", "v_proj": "Q8_0", "embed_tokens": "Q8_0"}
KINDS |= {"gate_proj": "Q4_0", "up_proj": "Q5_1", "down_proj": "Q3_K"}
WIDE = {"hidden_size": 256, "intermediate_size": 256}
ROPES = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SUBJECTS: dict[str, Save] = {
    "llama.gguf": saved_gguf,
    "packed llama.gguf": _packed_gguf,
    "qwen3moe.gguf": partial(_mixture_gguf, "qwen3_moe"),
    "glm4moe.gguf": partial(_mixture_gguf, "glm4_moe"),
    "qwen3next.gguf": _state_gguf(hybrid_gguf.save_gguf, hybrids.qwen3_next),
    "lfm2.gguf": _state_gguf(state_gguf.save_lfm2, states.lfm2),
    "granite4.gguf": _state_gguf(state_gguf.save_granite4, states.granite4),
    "llama": _directory("llama", **ROPES),
    "gemma2": _directory("gemma2", query_pre_attn_scalar=16),
    "phi3": _directory("phi3", pad_token_id=0),
    "qwen3_moe": _directory("qwen3_moe", **EXPERTS),
    "qwen3_5": _hybrid(hybrids.qwen3_5),
    "granite4": _hybrid(states.granite4),
    "lfm2_moe": _hybrid(states.lfm2_moe),
    "awq": partial(_packed, "awq"),
    "gptq": partial(_packed, "gptq, ordered by activation"),
    "compressed": partial(_packed, "packed, with zeros"),
    "fp8": partial(_packed, "fp8 of blocks"),
    "mxfp4": _gpt_oss,
    "a transformers module": _directory("gpt_neox", num_key_value_heads=4),
    "a transformers module with its cache": _directory("mamba", state_size=8),
    "bert": _bert,
    "adapter": _adapter,
}
SLOW = frozenset({"a transformers module", "a transformers module with its cache", "bert"})
"""What takes transformers a tenth of a second for each case."""

"""Tiny models on disk: a Hugging Face directory, and the same weights as GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from inference.loading.gguf import quants

NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_KV_HEADS,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

GGUF_NAMES = {
    "mlp.gate.e_score_correction": "exp_probs_b",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}


SCALE_FIELDS = {
    "Q2_K": (80, 84),
    "Q3_K": (108, 110),
    "Q4_K": (0, 4),
    "Q5_K": (0, 4),
    "Q6_K": (208, 210),
    "TQ1_0": (52, 54),
    "TQ2_0": (64, 66),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0, 2)),
    **dict.fromkeys(("IQ4_NL", "IQ4_XS", "Q1_0"), (0, 2)),
}
"""Where a block holds its float16 scales; gguf cannot quantise most of these types, only read
them."""
SPREAD_SCALES = ("IQ1_M", "NVFP4")
"""Types whose scales lie otherwise."""

RANDOM_VALUE = 0.04
"""Root mean square of random weights in these formats."""


@pytest.fixture
def tiny_directory(tmp_path: Path) -> Path:
    return save_directory(tmp_path / "tiny", "llama")


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
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(sizes["num_key_value_heads"])
    writer.add_key_length(sizes["head_dim"])
    writer.add_layer_norm_rms_eps(sizes["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    _add_vocabulary(writer)
    for key, value in (metadata or {}).items():
        add_key(writer, key, value)
    for name, weight in weights.items():
        values = weight.float().numpy()
        if architecture == "llama" and (heads := _rotary_heads(name)):
            values = _interleaved(values, heads)
        type = (types or {}).get(name, GGMLQuantizationType.F32)
        _add_tensor(writer, architecture, name, values, type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Whole numbers without a sign, as llama.cpp wants them."""
    kind = gguf.GGUFValueType.get_type(value)
    is_whole = kind is gguf.GGUFValueType.INT32
    writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if is_whole else kind)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", *(chr(0x100 + i) for i in range(58))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * 61)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _add_tensor(
    writer: gguf.GGUFWriter,
    architecture: str,
    name: str,
    values: np.ndarray,
    type: GGMLQuantizationType,
) -> None:
    if type == GGMLQuantizationType.F32:
        writer.add_tensor(gguf_name(name, architecture), values)
        return
    if type.name in SCALE_FIELDS or type.name in SPREAD_SCALES:
        blocks = random_blocks(np.random.default_rng(len(name)), type, *values.shape)
    else:
        blocks = gguf.quantize(values, type)
    writer.add_tensor(gguf_name(name, architecture), blocks, raw_dtype=type)


def random_blocks(
    generator: np.random.Generator, type: GGMLQuantizationType, num_rows: int, num_features: int
) -> np.ndarray:
    """Any codes, and scales that keep the values about as large as a model's."""
    block_features, block_bytes = GGML_QUANT_SIZES[type]
    num_blocks = num_features // block_features
    blocks = generator.integers(0, 256, (num_rows, num_blocks, block_bytes), dtype=np.uint8)
    if type.name == "NVFP4":
        blocks[:, :, :4] &= 0x0F  # up to 2**-6, in numbers of up to 6
        return blocks.reshape(num_rows, -1)
    num_scales = 1
    if type.name in SCALE_FIELDS:
        first, last = SCALE_FIELDS[type.name]
        num_scales = (last - first) // 2
    scales = generator.uniform(0.5, 1.5, (num_rows, num_blocks, num_scales))
    _set_scales(blocks, type, scales)
    values = quants.stored(blocks.reshape(num_rows, -1), type).dequantize().numpy()
    scales *= RANDOM_VALUE / np.sqrt(np.square(values).mean())
    _set_scales(blocks, type, scales)
    return blocks.reshape(num_rows, -1)


def _set_scales(blocks: np.ndarray, type: GGMLQuantizationType, scales: np.ndarray) -> None:
    halves = scales.astype(np.float16)
    if type.name == "IQ1_M":  # four bits of it on top of each of four words
        words = blocks[:, :, 48:].view(np.uint16)
        words &= 0x0FFF
        words |= halves.view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) << 12
        return
    first, last = SCALE_FIELDS[type.name]
    blocks[:, :, first:last] = halves.view(np.uint8)


GLM_NAMES = {"post_attention_layernorm": "post_attention_norm"}


def gguf_name(name: str, architecture: str = "llama") -> str:
    own = GGUF_NAMES | (GLM_NAMES if architecture == "glm4moe" else {})
    stem, _, kind = name.rpartition(".")
    if stem in own:
        return f"{own[stem]}.{kind}"
    _, _, index, layer_stem = stem.split(".", 3)
    return f"blk.{index}.{own[layer_stem]}.{kind}"


def _rotary_heads(name: str) -> int | None:
    if "q_proj" in name:
        return NUM_HEADS
    return NUM_KV_HEADS if "k_proj" in name else None


def _interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))

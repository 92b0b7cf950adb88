"""A folder of random weights at a dense shape, as a hub would publish it: config, safetensors in a
file a layer, a tokenizer.

    python -m benchmarks.weights.random_folder SHAPE FOLDER DEVICE [fp8]

makes one. Weights are drawn on DEVICE, where a card is a hundred times faster than a core, and are
so small that logits stay finite.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.subject import REPOSITORY_DIR
from benchmarks.weights.shapes import SHAPES, DenseShape
from inference.loading.sources.files import SAFETENSORS_INDEX

WEIGHT_STD = 0.02
FP8_BLOCK = 128
"""Rows and columns that share a scale where projections are in fp8, as in Qwen3's fp8 files."""
FP8_MAX = 448.0
Dimensions = dict[str, tuple[int, ...]]


def main() -> None:
    name, folder, device, *kind = sys.argv[1:]
    write(_dense(name), Path(folder), device, is_fp8=kind == ["fp8"])


def random_folder(name: str, data_dir: Path, device: str, *, is_fp8: bool = False) -> Path:
    """The shape's folder under ``data_dir``; made once, in a process of its own, which leaves no
    memory on the card. Raises ``subprocess.CalledProcessError``."""
    folder = folder_path(name, data_dir, is_fp8=is_fp8)
    if not (folder / "config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        words = ["-m", "benchmarks.weights.random_folder", name, str(folder), device]
        words += ["fp8"] if is_fp8 else []
        subprocess.run([sys.executable, *words], cwd=REPOSITORY_DIR, check=True)
    return folder


def folder_path(name: str, data_dir: Path, *, is_fp8: bool = False) -> Path:
    return data_dir / "random" / (f"{name}-fp8" if is_fp8 else name)


def folder_bytes(name: str, *, is_fp8: bool = False) -> int:
    return sum(
        prod(size) * (1 if is_fp8 and "_proj" in tensor else 2)
        for file in _files(_dense(name))
        for tensor, size in file.items()
    )


def write(shape: DenseShape, folder: Path, device: str, *, is_fp8: bool = False) -> None:
    """``is_fp8``: projections in float8_e4m3fn with a scale for each block."""
    folder.mkdir(parents=True, exist_ok=True)
    files = list(_files(shape))
    file_of: dict[str, str] = {}
    for number, dimensions in enumerate(files, start=1):
        file_name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        tensors: dict[str, torch.Tensor] = {}
        for name, size in dimensions.items():
            weight = _random_weight(size, device)
            is_rounded = is_fp8 and "_proj" in name
            tensors |= _fp8_tensors(name, weight) if is_rounded else {name: weight}
        save_file(tensors, folder / file_name, metadata={"format": "pt"})
        file_of |= dict.fromkeys(tensors, file_name)
    index = {"metadata": {}, "weight_map": file_of}
    (folder / SAFETENSORS_INDEX).write_text(json.dumps(index))
    _write_tokenizer(folder)
    # Written last: a folder without it is made again.
    (folder / "config.json").write_text(json.dumps(_config(shape, is_fp8=is_fp8), indent=2))


def _dense(name: str) -> DenseShape:
    shape = SHAPES[name]
    assert isinstance(shape, DenseShape), name
    return shape


def _config(shape: DenseShape, *, is_fp8: bool) -> dict[str, Any]:
    """No token ends a sequence."""
    fp8 = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
    }
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.inner_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
        **({"quantization_config": fp8} if is_fp8 else {}),
    }


def _files(shape: DenseShape) -> Iterator[Dimensions]:
    """Names and dimensions, (out_features, in_features) of matrices: a file of tables, then one a
    layer."""
    hidden, inner = shape.hidden_size, shape.inner_size
    heads, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    table = shape.vocab_size, hidden
    yield {
        "model.embed_tokens.weight": table,
        "model.norm.weight": (hidden,),
        "lm_head.weight": table,
    }
    for index in range(shape.num_layers):
        layer: Dimensions = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (heads, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, heads),
            "self_attn.q_norm": (shape.head_dim,),
            "self_attn.k_norm": (shape.head_dim,),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        yield {f"model.layers.{index}.{name}.weight": size for name, size in layer.items()}


def _random_weight(size: tuple[int, ...], device: str) -> torch.Tensor:
    """bfloat16 in the host's memory; norms are ones."""
    if len(size) == 1:
        return torch.ones(size, dtype=torch.bfloat16)
    return torch.empty(size, dtype=torch.bfloat16, device=device).normal_(std=WEIGHT_STD).cpu()


def _fp8_tensors(name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """``weight`` in float8_e4m3fn and its scales, (ceil(out / 128), ceil(in / 128)) float32."""
    out_blocks, in_blocks = (-(-size // FP8_BLOCK) for size in weight.shape)
    # One scale for all of them: the weights are draws of one distribution.
    scale = float(weight.abs().max()) / FP8_MAX
    scales = torch.full((out_blocks, in_blocks), scale, dtype=torch.float32)
    return {name: (weight.float() / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scales}


def _write_tokenizer(folder: Path) -> None:
    """A token for each byte: prompts are token ids already, and a load requires a tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()

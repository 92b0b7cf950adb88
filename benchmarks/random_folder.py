"""A folder of random weights at a dense shape, as a hub would publish it.

    python -m benchmarks.random_folder SHAPE FOLDER DEVICE [fp8]

transformers draws the weights, so small that logits stay finite. A card is a hundred times faster.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import save_torch_state_dict
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.shapes import SHAPES, DenseShape
from benchmarks.subject import REPOSITORY_DIR

FP8_BLOCK = 128
"""Rows and columns that share a scale where projections are in fp8, as in Qwen3's fp8 files."""
FP8_MAX = 448.0


def main() -> None:
    name, folder, device, *kind = sys.argv[1:]
    write(name, Path(folder), device, is_fp8=kind == ["fp8"])


def random_folder(name: str, data_dir: Path, device: str, *, is_fp8: bool = False) -> Path:
    """Made once, in a process of its own, which leaves no memory on the card."""
    folder = folder_path(name, data_dir, is_fp8=is_fp8)
    if not (folder / "config.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        words = ["-m", "benchmarks.random_folder", name, str(folder), device]
        words += ["fp8"] if is_fp8 else []
        subprocess.run([sys.executable, *words], cwd=REPOSITORY_DIR, check=True)
    return folder


def folder_path(name: str, data_dir: Path, *, is_fp8: bool = False) -> Path:
    return data_dir / "random" / (f"{name}-fp8" if is_fp8 else name)


@cache
def folder_bytes(name: str, *, is_fp8: bool = False) -> int:
    return sum(
        weight.numel() * (1 if is_fp8 and _is_projection(tensor) else 2)
        for tensor, weight in _weights(name, "meta").items()
    )


def write(name: str, folder: Path, device: str, *, is_fp8: bool = False) -> None:
    """``is_fp8``: projections in float8_e4m3fn with a scale for each block."""
    weights = _weights(name, device)
    config = _config(name).to_dict() | {"architectures": ["Qwen3ForCausalLM"]}
    if is_fp8:
        for tensor in filter(_is_projection, list(weights)):
            weights |= _fp8_tensors(tensor, weights[tensor])
        config["quantization_config"] = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(weights, folder)
    _write_tokenizer(folder)
    # Written last: a folder without it is made again.
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str))


def _config(name: str) -> Any:
    """No token ends a sequence."""
    shape = SHAPES[name]
    assert isinstance(shape, DenseShape), name
    return transformers.Qwen3Config(
        dtype="bfloat16",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.inner_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def _weights(name: str, device: str) -> dict[str, torch.Tensor]:
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(_config(name), dtype=torch.bfloat16)
    return dict(model.state_dict())


def _is_projection(tensor: str) -> bool:
    return "_proj" in tensor


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

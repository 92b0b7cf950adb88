"""Model folders with random weights at a real model's shape, as a hub would publish them: config,
safetensors in shards with their index, a tokenizer.

    python -m benchmarks.cuda.random_model SHAPE FOLDER DEVICE [fp8]

makes one. Weights are drawn on DEVICE, where a card is a hundred times faster than a core. They are
small enough for logits to stay finite, and their values have no bearing on speed. Lower bounds of a
step's reads and arithmetic follow from the shapes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.subject import REPOSITORY_DIR
from inference.loading.config.checked_shapes import expected_tensors
from inference.loading.sources.files import SAFETENSORS_INDEX
from inference.models.cache.kv_format import kv_bytes_per_token
from inference.models.config import ModelConfig

SHAPES = {
    "1.7B": ModelConfig(
        architecture="qwen3",
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        max_positions=8192,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        qk_norm=True,
        tie_embeddings=True,
    ),
    "8B": ModelConfig(
        architecture="llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_positions=8192,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
    ),
}
TINY = ModelConfig(
    architecture="qwen3",
    vocab_size=20_480,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    max_positions=512,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
    qk_norm=True,
    tie_embeddings=True,
)
"""No real model's: for trials without a card."""
ALL_SHAPES = {**SHAPES, "tiny": TINY}
CLASSES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
WEIGHT_STD = 0.02
SHARD_BYTES = 4 * 10**9
BYTES_PER_WEIGHT = 2
SPARE_DISK_BYTES = 10**9
FP8_BLOCK = 128
"""Rows and columns that share a scale where projections are in fp8, as in Qwen3's fp8 files."""
FP8_MAX = 448.0


class NoRoomError(Exception):
    """The disk has no room for a folder; the message has both numbers."""


def main() -> None:
    shape, folder, device, *kind = sys.argv[1:]
    make_folder(ALL_SHAPES[shape], Path(folder), device, is_fp8=kind == ["fp8"])


def model_folder(shape: str, data_dir: Path, device: str, *, is_fp8: bool = False) -> Path:
    """The shape's folder under ``data_dir``; made once, in a process of its own, which leaves no
    memory on the card. Raises ``NoRoomError``, ``subprocess.CalledProcessError``."""
    config = ALL_SHAPES[shape]
    folder = data_dir / "random" / (f"{shape}-fp8" if is_fp8 else shape)
    if is_made(config, folder, is_fp8=is_fp8):
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    num_bytes = folder_bytes(config) // (2 if is_fp8 else 1)
    check_disk(shape, num_bytes, folder.parent, shutil.disk_usage(folder.parent).free)
    words = ["-m", "benchmarks.cuda.random_model", shape, str(folder), device]
    words += ["fp8"] if is_fp8 else []
    subprocess.run([sys.executable, *words], cwd=REPOSITORY_DIR, check=True)
    return folder


def is_made(config: ModelConfig, folder: Path, *, is_fp8: bool = False) -> bool:
    """The config is written last."""
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(found == hub_config(config, is_fp8=is_fp8))


def check_disk(shape: str, needed_bytes: int, place: Path, free_bytes: int) -> None:
    """Raises ``NoRoomError``."""
    if needed_bytes + SPARE_DISK_BYTES > free_bytes:
        raise NoRoomError(
            f"weights of the shape {shape} need {needed_bytes / 1e9:.1f} GB under {place}, and "
            f"{free_bytes / 1e9:.1f} GB are free"
        )


def folder_bytes(config: ModelConfig) -> int:
    num_tables = 1 if config.tie_embeddings else 2
    num_weights = projection_weights(config) + num_tables * table_weights(config)
    return num_weights * BYTES_PER_WEIGHT


def hub_config(config: ModelConfig, *, is_fp8: bool = False) -> dict[str, Any]:
    """The content of config.json. No token ends a sequence."""
    fp8 = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
    }
    return {
        "architectures": [CLASSES[config.architecture]],
        "model_type": config.architecture,
        "dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
        "bos_token_id": None,
        "eos_token_id": None,
        **({"quantization_config": fp8} if is_fp8 else {}),
    }


def shards(sizes: Mapping[str, int], shard_bytes: int) -> list[list[str]]:
    """Names in their order, in shards of at most ``shard_bytes``."""
    parts: list[list[str]] = []
    held_bytes = 0
    for name, num_bytes in sizes.items():
        if not parts or held_bytes + num_bytes > shard_bytes:
            parts.append([])
            held_bytes = 0
        parts[-1].append(name)
        held_bytes += num_bytes
    return parts


def make_folder(config: ModelConfig, folder: Path, device: str, *, is_fp8: bool = False) -> None:
    """``is_fp8``: projections in fp8 with a scale for each block, as in Qwen3's fp8 files."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(config, folder, device, is_fp8=is_fp8)
    _write_tokenizer(folder)
    described = hub_config(config, is_fp8=is_fp8)
    (folder / "config.json").write_text(json.dumps(described, indent=2))


def _write_weights(config: ModelConfig, folder: Path, device: str, *, is_fp8: bool) -> None:
    from safetensors.torch import save_file

    file_of: dict[str, str] = {}
    for file_name, names in _named_shards(config):
        tensors: dict[str, Any] = {}
        for name in names:
            weight = _random_weight(weight_shape(config, name), device)
            is_rounded = is_fp8 and "_proj" in name
            tensors |= _fp8_tensors(name, weight) if is_rounded else {name: weight}
        save_file(tensors, folder / file_name, metadata={"format": "pt"})
        file_of |= dict.fromkeys(tensors, file_name)
    index = {"metadata": {"total_size": folder_bytes(config)}, "weight_map": file_of}
    (folder / SAFETENSORS_INDEX).write_text(json.dumps(index))


def _named_shards(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    sizes = {}
    for name in expected_tensors(config):
        out_features, *rest = weight_shape(config, name)
        sizes[name] = out_features * (rest[0] if rest else 1) * BYTES_PER_WEIGHT
    parts = shards(sizes, SHARD_BYTES)
    for number, names in enumerate(parts, start=1):
        yield f"model-{number:05d}-of-{len(parts):05d}.safetensors", names


def _random_weight(shape: tuple[int, ...], device: str) -> Any:
    """bfloat16 in the host's memory; norms are ones."""
    import torch

    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    weight = torch.empty(shape, dtype=torch.bfloat16, device=device)
    return weight.normal_(std=WEIGHT_STD).cpu()


def _fp8_tensors(name: str, weight: Any) -> dict[str, Any]:
    """``weight`` in float8_e4m3fn and its scales, (ceil(out / 128), ceil(in / 128)) float32."""
    import torch

    out_blocks, in_blocks = (-(-size // FP8_BLOCK) for size in weight.shape)
    # One scale for all of them: the weights are draws of one distribution.
    scale = float(weight.abs().max()) / FP8_MAX
    scales = torch.full((out_blocks, in_blocks), scale, dtype=torch.float32)
    codes = (weight.float() / scale).to(torch.float8_e4m3fn)
    return {name: codes, f"{name}_scale_inv": scales}


def _write_tokenizer(folder: Path) -> None:
    """A token for each byte: prompts are token ids already, and a load requires a tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def weight_shape(config: ModelConfig, name: str) -> tuple[int, ...]:
    """The shape of a weight by its Hugging Face name, with or without ``.weight``: (out_features,
    in_features), or (features,) of a norm."""
    kind = name.removesuffix(".weight").rsplit(".", 1)[-1]
    if kind.endswith("norm"):
        return (config.head_dim if kind in ("q_norm", "k_norm") else config.hidden_size,)
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    table = config.vocab_size, hidden
    return {
        "q_proj": (heads, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, heads),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
        "embed_tokens": table,
        "lm_head": table,
    }[kind]


def projection_weights(config: ModelConfig) -> int:
    """The number of weights in the layers' projections: all but tables and norms."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads
    per_layer = heads * config.head_dim + 3 * config.intermediate_size
    return config.num_layers * per_layer * config.hidden_size


def table_weights(config: ModelConfig) -> int:
    """The number of weights in an embedding table and an output head."""
    return config.vocab_size * config.hidden_size


def decode_floor_bytes(
    config: ModelConfig,
    *,
    bytes_per_weight: float,
    bytes_per_head_weight: float,
    num_rows: int,
    context_tokens: int,
) -> float:
    """The least bytes that a decode step reads: projections, the output head, and the rows'
    contexts. Norms and embedding rows are negligible."""
    projections = projection_weights(config) * bytes_per_weight
    head = table_weights(config) * bytes_per_head_weight
    return projections + head + num_rows * context_tokens * kv_bytes_per_token(config, "bf16")


def prefill_floor_flops(config: ModelConfig, num_tokens: int) -> int:
    """The least arithmetic of a prompt's projections. Attention and the one row of logits are left
    out: time spent on them counts against the share."""
    return 2 * projection_weights(config) * num_tokens


if __name__ == "__main__":
    main()

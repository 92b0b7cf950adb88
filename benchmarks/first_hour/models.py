"""The models that the first hour loads: random weights at real models' shapes, one of each kind of
file, in sizes that fit the card. Imports no torch.

    python -m benchmarks.first_hour.models KIND SIZE DATA_DIR DEVICE

makes a missing one. A load needs a tenth more than its weights of a card beside keys, values and
the process itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks.cuda.plan import WORKING_BYTES
from benchmarks.cuda.random_model import (
    ALL_SHAPES,
    SPARE_DISK_BYTES,
    folder_bytes,
    model_folder,
)
from benchmarks.weights.random_gguf import (
    DenseShape,
    HybridShape,
    MixtureShape,
    Shape,
    file_bytes,
    random_file,
)

Kind = Literal["dense", "packed", "fp8", "mixture", "hybrid"]
KINDS: tuple[Kind, ...] = get_args(Kind)

QWEN3_8B = DenseShape(
    vocab_size=151936,
    hidden_size=4096,
    inner_size=12288,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
)


def qwen3_30b_a3b(num_layers: int) -> MixtureShape:
    """The model has 48 layers; fewer fit smaller cards, and each works as much."""
    return MixtureShape(
        vocab_size=151936,
        hidden_size=2048,
        num_layers=num_layers,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        num_experts=128,
        experts_per_token=8,
        expert_size=768,
    )


QWEN3_5_0_8B = HybridShape(
    vocab_size=248320,
    hidden_size=1024,
    inner_size=3584,
    num_layers=24,
    num_heads=8,
    num_kv_heads=2,
    head_dim=256,
    num_delta_heads=16,
    delta_head_dim=128,
)
TINY_DENSE = DenseShape(
    vocab_size=2048,
    hidden_size=256,
    inner_size=512,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
)
TINY_MIXTURE = MixtureShape(
    vocab_size=2048,
    hidden_size=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    num_experts=8,
    experts_per_token=2,
    expert_size=256,
)
TINY_HYBRID = HybridShape(
    vocab_size=2048,
    hidden_size=256,
    inner_size=256,
    num_layers=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=256,
    num_delta_heads=2,
    delta_head_dim=128,
)
GGUF_SHAPES: Mapping[str, Shape] = {
    "qwen3-8b": QWEN3_8B,
    "qwen3-30b-a3b": qwen3_30b_a3b(48),
    "qwen3-30b-a3b-16-layers": qwen3_30b_a3b(16),
    "qwen3.5-0.8b": QWEN3_5_0_8B,
    "tiny-dense": TINY_DENSE,
    "tiny-mixture": TINY_MIXTURE,
    "tiny-hybrid": TINY_HYBRID,
}
SIZES: Mapping[Kind, Sequence[str]] = {
    "dense": ("1.7B",),
    "packed": ("qwen3-8b",),
    "fp8": ("8B", "1.7B"),
    "mixture": ("qwen3-30b-a3b", "qwen3-30b-a3b-16-layers"),
    "hybrid": ("qwen3.5-0.8b",),
}
"""The shapes of each kind, the largest first."""
TINY_SIZES: Mapping[Kind, str] = {
    "dense": "tiny",
    "packed": "tiny-dense",
    "fp8": "tiny",
    "mixture": "tiny-mixture",
    "hybrid": "tiny-hybrid",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """``size`` of a kind, or the reason in words why none of them is loaded."""

    kind: Kind
    size: str | None
    problem: str = ""


def chosen(kind: Kind, *, is_tiny: bool, card_bytes: int, disk_bytes: int) -> Chosen:
    """The largest size that the card's and the disk's free bytes have room for."""
    if is_tiny:
        return Chosen(kind=kind, size=TINY_SIZES[kind])
    for size in SIZES[kind]:
        fits_card = card_need_bytes(kind, size) <= card_bytes
        if fits_card and weight_bytes(kind, size) + SPARE_DISK_BYTES <= disk_bytes:
            return Chosen(kind=kind, size=size)
    least = SIZES[kind][-1]
    problem = (
        f"{least} needs {card_need_bytes(kind, least) / 1e9:.1f} GB of the card and "
        f"{weight_bytes(kind, least) / 1e9:.1f} GB of disk; {card_bytes / 1e9:.1f} and "
        f"{disk_bytes / 1e9:.1f} GB are free"
    )
    return Chosen(kind=kind, size=None, problem=problem)


def weight_bytes(kind: Kind, size: str) -> int:
    """Bytes of its files, and on a card."""
    if size in GGUF_SHAPES:
        return file_bytes(GGUF_SHAPES[size])
    dense_bytes = folder_bytes(ALL_SHAPES[size])
    return dense_bytes // 2 if kind == "fp8" else dense_bytes


def card_need_bytes(kind: Kind, size: str) -> int:
    return weight_bytes(kind, size) * 11 // 10 + WORKING_BYTES


def model_path(kind: Kind, size: str, data_dir: Path) -> Path:
    if size in GGUF_SHAPES:
        return data_dir / "random" / f"{size}.gguf"
    return data_dir / "random" / (f"{size}-fp8" if kind == "fp8" else size)


def make(kind: Kind, size: str, data_dir: Path, device: str) -> Path:
    """Made once. Raises ``NoRoomError``, ``subprocess.CalledProcessError``."""
    if size in GGUF_SHAPES:
        return random_file(size, GGUF_SHAPES[size], data_dir)
    return model_folder(size, data_dir, device, is_fp8=kind == "fp8")


def main() -> None:
    word, size, data_dir, device = sys.argv[1:]
    (kind,) = (kind for kind in KINDS if kind == word)
    path = make(kind, size, Path(data_dir), device)
    print(f"{path}: {weight_bytes(kind, size) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()

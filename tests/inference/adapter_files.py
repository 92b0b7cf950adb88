"""Random adapters as PEFT saves them, and their sum with a base model's weights, made by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from inference.protocol.load import AdapterSpec

LLAMA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    directory: Path,
    base: Mapping[str, torch.Tensor],
    *,
    seed: int,
    rank: int = 4,
    alpha: float = 8.0,
    targets: Sequence[str] = LLAMA_TARGETS,
    size: float = 0.2,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> dict[str, torch.Tensor]:
    """Writes an adapter for the weights of ``base`` whose names end in a target. Returns ``base``
    with the adapter merged in."""
    generator = torch.Generator().manual_seed(seed)
    tensors, merged = {}, dict(base)
    rank_pattern = config.get("rank_pattern", {})
    alpha_pattern = config.get("alpha_pattern", {})
    for name, weight in base.items():
        module = name.removesuffix(".weight")
        target = next((t for t in targets if module.endswith(f".{t}")), None)
        if target is None or not name.endswith(".weight"):
            continue
        own_rank = rank_pattern.get(target, rank)
        own_alpha = alpha_pattern.get(target, alpha)
        down = torch.randn(own_rank, weight.shape[1], generator=generator) * size
        up = torch.randn(weight.shape[0], own_rank, generator=generator) * size
        down, up = down.to(dtype), up.to(dtype)
        prefix = f"base_model.model.{module}"
        tensors |= {f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}
        root = math.sqrt(own_rank) if config.get("use_rslora") else own_rank
        merged[name] = weight + own_alpha / root * (up.float() @ down.float())
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    document = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(targets),
        "bias": "none",
        **config,
    }
    (directory / "adapter_config.json").write_text(json.dumps(document))
    return merged


def spec_of(directory: Path, name: str | None = None) -> AdapterSpec:
    return AdapterSpec(name=name or directory.name, source=f"path:{directory}")

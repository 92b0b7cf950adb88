"""The weights of a model that is quantised while it loads, as they were before: what its quality is
measured against."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.loading.weights.opened_weights import OpenedWeights
from inference.loading.weights.tensor_files import TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.families.roles import MATRIX_ROLES
from inference.models.layers.linear import LinearFactory
from inference.models.weights.weight_source import WeightSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Unquantized:
    weights: WeightSource
    format: str
    """The format's name for people: BF16 …"""
    fingerprint: str
    """Stands for the files: it is another one where a file was written since, or is another."""


def open_unquantized(
    files: TensorFiles,
    config: ModelConfig,
    paths: Sequence[Path],
    device: torch.device,
    dtype: torch.dtype,
) -> Unquantized:
    """Nothing is read yet. On a CPU the products are in float32, whatever ``dtype``."""
    exact = LinearFactory(
        device,
        torch.float32 if device.type == "cpu" else dtype,
        prefill_copies=False,
        exact=True,
    )
    return Unquantized(
        weights=OpenedWeights(files, exact, lambda _: None),
        format=files.format_of(_first_projection(files, config)),
        fingerprint=_fingerprint(paths),
    )


def _first_projection(files: TensorFiles, config: ModelConfig) -> str:
    """Whatever a family calls it: one weight of those that are quantised."""
    names = set(files.names)
    projections = (
        name
        for tensor in family_of(config).tensors(config)
        if tensor.role in MATRIX_ROLES
        for name in tensor.parts or (tensor.name,)
    )
    return next(name for name in projections if name in names)


def _fingerprint(paths: Sequence[Path]) -> str:
    """Names, sizes and times of writing: reading gigabytes again would take as long as measuring
    does."""
    digest = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        digest.update(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()

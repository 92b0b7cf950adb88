"""``ModelConfig`` from a GGUF file's header, read by the family that the file names. Imports no
torch."""

from __future__ import annotations

import numpy as np

from inference.loading.gguf_header import GGUFHeader
from inference.models.config import ModelConfig
from inference.models.families.gguf_keys import ROPE_FREQUENCIES, GGUFKeys
from inference.models.families.registry import check_gguf_architecture


def read_gguf_config(header: GGUFHeader) -> ModelConfig:
    """Raises ``UnknownArchitectureError``, ``BadFileError``."""
    architecture = str(header.metadata.get("general.architecture"))
    family = check_gguf_architecture(architecture)
    assert family.read_gguf is not None
    shapes = {name: info.shape for name, info in header.tensors.items()}
    keys = GGUFKeys(header.metadata, architecture, shapes, _rope_divisors(header))
    return family.read_gguf(keys)


def _rope_divisors(header: GGUFHeader) -> list[float] | None:
    info = header.tensors.get(ROPE_FREQUENCIES)
    if info is None:
        return None
    stored = np.fromfile(info.path, np.float32, info.num_elements, offset=info.offset)
    return [float(divisor) for divisor in stored]

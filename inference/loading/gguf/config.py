"""``ModelConfig`` from a GGUF file's header, read by the family that the file names. Imports no
torch, but for a file of one of transformers' own modules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gguf.constants import GGMLQuantizationType

from inference.loading.config.checked_config import check_config
from inference.loading.config.hub_config import learnt_config, refuses_malformed
from inference.loading.gguf.header import GGUFHeader
from inference.models.config import ModelConfig
from inference.models.families.gguf_keys import ROPE_FREQUENCIES, GGUFKeys, text_facts
from inference.models.families.gguf_numbers import read_gguf
from inference.models.families.limits import check_counts
from inference.models.families.registry import check_gguf_architecture
from inference.models.families.transformers_modules import MODULES, check_module_keys
from inference.protocol.load_errors import BadFileError


def read_gguf_config(header: GGUFHeader) -> ModelConfig:
    """What transformers' own module computes is looked at, which imports it and torch. Raises
    ``UnknownArchitectureError``, ``BadFileError``."""
    with refuses_malformed(f"the metadata of {header.path.name}"):
        check_counts(header.metadata)
        return check_config(_read(header))


def _read(header: GGUFHeader) -> ModelConfig:
    architecture = str(header.metadata.get("general.architecture"))
    family = check_gguf_architecture(architecture)
    if family.uses_transformers:
        from inference.loading.gguf.module import read_module_config  # imports transformers

        read = family.read_config(read_module_config(header, MODULES[architecture]), {})
        check_module_keys(gguf_keys(header), read)
        return learnt_config(check_config(replace(read, **text_facts(header.metadata))))
    return read_gguf(family, gguf_keys(header))


def gguf_keys(header: GGUFHeader, section: str | None = None) -> GGUFKeys:
    """``section``: what most keys stand under, where that is not the architecture's name. Raises
    ``BadFileError``."""
    section = section or str(header.metadata.get("general.architecture"))
    shapes = {name: info.shape for name, info in header.tensors.items()}
    return GGUFKeys(header.metadata, section, shapes, _rope_divisors(header))


def _rope_divisors(header: GGUFHeader) -> list[float] | None:
    """Raises ``BadFileError``."""
    info = header.tensors.get(ROPE_FREQUENCIES)
    if info is None:
        return None
    if info.type != GGMLQuantizationType.F32:
        raise BadFileError(f"{ROPE_FREQUENCIES} is stored as {info.type.name}; F32 is read")
    stored = np.fromfile(info.path, np.float32, info.num_elements, offset=info.offset)
    return [float(divisor) for divisor in stored]

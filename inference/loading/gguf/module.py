"""Reads GGUF files of architectures that no family here reads, with transformers' reader, for the
transformers backend. The tensors come out dequantised."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
)

from inference.loading.gguf.config import gguf_keys
from inference.loading.gguf.header import GGUFHeader, TensorInfo
from inference.loading.weights.tensor_files import MadeTensor, TensorFiles
from inference.models.config import ModelConfig
from inference.models.families.transformers_modules import added_by_metadata
from inference.models.transformers_backend.hub_module import without_weights
from inference.protocol.load_errors import BadFileError, WrongShapeError


def read_module_config(header: GGUFHeader, model_type: str) -> dict[str, Any]:
    """Raises ``BadFileError``."""
    found = _read(header, tensors_of=None)["config"]
    return {**found, **added_by_metadata(gguf_keys(header)), "model_type": model_type}


class DequantisedTensors(TensorFiles):
    """Reads all tensors at the first use: transformers' reader knows no other way."""

    def __init__(self, header: GGUFHeader, config: ModelConfig) -> None:
        """Raises ``BadFileError`` for a tensor that the module has no place for."""
        module = without_weights(config)
        processor = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)(config={})
        places = get_gguf_hf_weights_map(module, processor)
        if unknown := sorted(header.tensors.keys() - places.keys()):
            raise BadFileError(
                f"{header.path.name} holds the tensor {unknown[0]}, which transformers' "
                f"{type(module).__name__} has no place for"
            )
        found: dict[str, torch.Tensor] = {}

        def read(name: str) -> torch.Tensor:
            if not found:
                found.update(_read(header, tensors_of=module)["tensors"])
            return found[name]

        infos = {places[name]: info for name, info in header.tensors.items()}
        tensors = {
            name: _dequantised(info, tuple(module.get_parameter(name).shape), partial(read, name))
            for name, info in infos.items()
        }
        super().__init__(tensors, found.clear)


def _dequantised(
    info: TensorInfo, shape: tuple[int, ...], read: Callable[[], torch.Tensor]
) -> MadeTensor:
    if info.num_elements != math.prod(shape):
        raise WrongShapeError(info.name, shape, info.shape)
    return MadeTensor(shape, str(info.type.name), info.num_bytes, read)


def _read(header: GGUFHeader, tensors_of: Any) -> dict[str, Any]:
    """Hides the progress bar of transformers' reader."""
    path = _only_file(header)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found: dict[str, Any] = load_gguf_checkpoint(
                str(path), return_tensors=tensors_of is not None, model_to_load=tensors_of
            )
    except Exception as error:
        raise BadFileError(
            f"transformers does not read {path.name}: {type(error).__name__}: {error}"
        ) from error
    return found


def _only_file(header: GGUFHeader) -> Path:
    paths = {info.path for info in header.tensors.values()} or {header.path}
    if len(paths) > 1:
        raise BadFileError(
            f"{header.path.name} is one of {len(paths)} parts, and this architecture is read from "
            "a single file: join them with llama.cpp's gguf-split --merge"
        )
    return paths.pop()

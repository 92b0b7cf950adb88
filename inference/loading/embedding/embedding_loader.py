"""Opens an embedding model's files: what the loader does for one, instead of weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from inference.loading.config.checked_shapes import check_module_tensors
from inference.loading.devices import choose_dtype, earlier_loads_on
from inference.loading.directory_tokenizer import directory_tokenizer, separator_of_pairs
from inference.loading.embedding.embedding_files import (
    OpenedEmbeddingModel,
    check_embedding_fits,
    count_parameters,
)
from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.sources.files import ModelFiles
from inference.models.embedding import declared_shapes
from inference.models.embedding_config import EmbeddingConfig
from inference.models.errors import UnsupportedModuleError
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError


def open_embedding_model(
    spec: LoadSpec,
    files: ModelFiles,
    config: EmbeddingConfig,
    cache_dir: Path,
    device: torch.device,
    free_bytes: int,
) -> OpenedEmbeddingModel:
    refuse_settings_of_text(spec)
    if spec.tensor_parallel > 1:
        raise BadSourceError(
            "a model that makes embeddings is not shared by ranks; set tensor_parallel to 1"
        )
    dtype = choose_dtype(spec, device)
    num_parameters = count_parameters(files.weights)
    check_embedding_tensors(files, config)
    limit = min(config.max_input_tokens, spec.max_context_tokens or config.max_input_tokens)
    tokenizer_dir = directory_tokenizer(files.directory, cache_dir)
    separator = separator_of_pairs(tokenizer_dir) if config.activation is not None else None
    opened = OpenedEmbeddingModel(
        config=replace(config, max_input_tokens=limit, separator_token_id=separator),
        directory=files.directory,
        tokenizer_dir=tokenizer_dir,
        device=device,
        dtype=dtype,
        num_parameters=num_parameters,
        weight_bytes=num_parameters * dtype.itemsize,
    )
    check_embedding_fits(opened, free_bytes, earlier_loads_on(spec, device))
    return opened


def check_embedding_tensors(files: ModelFiles, config: EmbeddingConfig) -> None:
    """Reads headers only. Raises ``BadFileError``."""
    try:
        declared, prefix = declared_shapes(files.directory, config)
    except UnsupportedModuleError as error:
        raise BadFileError(str(error)) from error
    tensors = SafetensorsFiles(files.weights, has_integers=True)
    try:
        check_module_tensors(declared, tensors, prefix)
    finally:
        tensors.close()


def refuse_settings_of_text(spec: LoadSpec) -> None:
    """Raises ``BadSourceError`` for what would change nothing."""
    for name in ("kv_memory_bytes", "chat_template", "max_output_tokens"):
        if getattr(spec, name) is not None:
            raise BadSourceError(
                f"{name} has no meaning for a model that makes embeddings; leave it out"
            )
    if spec.quantization not in ("auto", "none"):
        raise BadSourceError(
            f"quantization {spec.quantization} is not built for a model that makes embeddings; set "
            "it to auto"
        )
    if spec.kv_dtype != "auto":
        raise BadSourceError(
            "kv_dtype has no meaning for a model that makes embeddings; set it to auto"
        )
    if spec.speculation != "off":
        raise BadSourceError(
            "speculation has no meaning for a model that makes embeddings; set it to off"
        )

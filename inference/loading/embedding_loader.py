"""Opens an embedding model's files and checks that it fits. Reads headers alone: transformers reads
the weights (``inference.models.embedding``)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from inference.loading.described import check_module_tensors
from inference.loading.devices import choose_dtype, earlier_loads_on
from inference.loading.sources.files import ModelFiles
from inference.loading.tokenizer_files import directory_tokenizer, separator_of_pairs
from inference.loading.weights.tensor_files import SafetensorsFiles
from inference.models.config import EmbeddingConfig
from inference.models.embedding import declared_shapes
from inference.models.errors import UnsupportedModuleError
from inference.protocol.load import EarlierLoads, LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError, DoesNotFitError

STEP_TOKENS = {"cpu": 2048, "cuda": 16384}
"""Most token rows of one forward, padding included, unless a single input has more."""
HIDDEN_COPIES, INTERMEDIATE_COPIES = 8, 3
"""How many such vectors a layer holds at once for each token row, generously counted."""
SETTINGS_OF_TEXT = {
    "kv_memory_bytes": None,
    "chat_template": None,
    "max_output_tokens": None,
    "kv_dtype": "auto",
    "speculation": "off",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEmbeddingModel:
    config: EmbeddingConfig
    directory: Path
    tokenizer_dir: Path
    device: torch.device
    dtype: torch.dtype
    num_parameters: int
    weight_bytes: int

    @property
    def step_tokens(self) -> int:
        return max(STEP_TOKENS[self.device.type], self.config.max_input_tokens)


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
    num_parameters = check_embedding_tensors(files, config)
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


def check_embedding_tensors(files: ModelFiles, config: EmbeddingConfig) -> int:
    """Returns the number of parameters. Raises ``BadFileError``."""
    try:
        declared, prefix = declared_shapes(files.directory, config)
    except UnsupportedModuleError as error:
        raise BadFileError(str(error)) from error
    tensors = SafetensorsFiles(files.weights, has_integers=True)
    try:
        check_module_tensors(declared, tensors, prefix)
        return sum(math.prod(tensor.shape) for tensor in tensors.values())
    finally:
        tensors.close()


def check_embedding_fits(
    opened: OpenedEmbeddingModel, free_bytes: int, earlier: EarlierLoads | None = None
) -> None:
    need_bytes = opened.weight_bytes + _step_bytes(opened)
    if earlier is not None:
        need_bytes = opened.weight_bytes + earlier.memory_correction_bytes
        if opened.device.type != "cuda":  # there a load runs the largest step, and measures it
            need_bytes += _step_bytes(opened)
    if need_bytes > free_bytes:
        raise DoesNotFitError(
            f"the model needs {need_bytes / 1e9:.2f} GB on {opened.device} (weights and a step of "
            f"{opened.step_tokens} tokens), and {free_bytes / 1e9:.2f} GB are free; unload another "
            "model, or load a smaller one",
            need_bytes,
        )


def _step_bytes(opened: OpenedEmbeddingModel) -> int:
    config = opened.config
    per_token = HIDDEN_COPIES * config.hidden_size + INTERMEDIATE_COPIES * config.intermediate_size
    mask_bytes = config.max_input_tokens**2
    return opened.step_tokens * per_token * opened.dtype.itemsize + mask_bytes


def refuse_settings_of_text(spec: LoadSpec) -> None:
    for name, neutral in SETTINGS_OF_TEXT.items():
        if getattr(spec, name) != neutral:
            instead = "leave it out" if neutral is None else f"set it to {neutral}"
            raise BadSourceError(
                f"{name} has no meaning for a model that makes embeddings; {instead}"
            )
    if spec.quantization not in ("auto", "none"):
        raise BadSourceError(
            f"quantization {spec.quantization} is not built for a model that makes embeddings; set "
            "it to auto"
        )

"""What a model's layers cost, read from its config.json or the headers of its GGUF files."""

from __future__ import annotations

from dataclasses import replace

from inference.loading.config.hub_config import parse_config, read_json
from inference.loading.costs.layer_costs import model_costs
from inference.loading.costs.model_costs import ModelCosts
from inference.loading.costs.stored_tensors import config_tensors, gguf_tensors
from inference.loading.sources.files import ModelFiles
from inference.models.config import ModelConfig
from inference.models.families.registry import check_gguf_architecture
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadSourceError


def read_costs(files: ModelFiles, spec: LoadSpec) -> ModelCosts:
    """``files``: of GGUF files the headers are enough, of safetensors config.json. ``spec``: how
    the load would quantise, and what it bounds. Raises ``LoadError``."""
    if files.is_gguf:
        # Hosts without neurons may lack the package gguf.
        from inference.loading.gguf.header import read_header
        from inference.loading.gguf.tower import read_gguf_model

        # A module of transformers would have to be imported, with torch.
        metadata = read_header(files.weights[0]).metadata
        family = check_gguf_architecture(str(metadata.get("general.architecture")))
        if family.uses_transformers:
            raise BadSourceError(
                f"transformers' own module computes {family.name}, and what its layers take is "
                "known only once it is loaded"
            )
        model = read_gguf_model(files, _without_pixels)
        config, tensors = model.config, gguf_tensors(model.config, model.header)
    else:
        hub = read_json(files.directory / "config.json")
        config = parse_config(hub, {})
        tensors = config_tensors(config, hub, spec.quantization)
    return model_costs(
        config,
        tensors,
        kv_dtype=spec.kv_dtype,
        max_sequences=spec.max_concurrent_sequences,
        max_context_tokens=spec.max_context_tokens,
    )


def _without_pixels(config: ModelConfig) -> ModelConfig:
    """The device bounds the size of images, and a plan has none yet."""
    if config.vision is None:
        return config
    return replace(config, vision=replace(config.vision, min_pixels=0, max_pixels=0))

"""A llama of a few thousand random weights, on any device."""

from __future__ import annotations

from dataclasses import replace

import torch

from inference.models.config import ModelConfig
from inference.models.decoder import DecoderModel
from inference.models.kv_format import KVFormat
from tests.inference.models.dense_weights import TINY, random_weights

CONFIG = replace(
    TINY,
    architecture="qwen3",
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    qk_norm=True,
    tie_embeddings=True,
)


def tiny_model(
    device: torch.device, kv_format: KVFormat = "fp32", config: ModelConfig = CONFIG
) -> DecoderModel:
    return DecoderModel(
        config, random_weights(config, device=device), config.max_positions, kv_format
    )

"""Builds a rank's decoder: the family's own, over this rank's weights, with sums between."""

from __future__ import annotations

from collections.abc import Sequence

from inference.models.cache.kv_format import KVFormat
from inference.models.config import ModelConfig
from inference.models.cuda.setup import install_kernels
from inference.models.decoder import DecoderModel
from inference.models.parallel.group import RankGroup
from inference.models.parallel.layers import spread
from inference.models.parallel.shares import RankShare, rank_config
from inference.models.parallel.weights import RankWeights
from inference.models.registry import build_model
from inference.models.weights.weight_source import WeightSource


def build_rank(
    config: ModelConfig,
    weights: WeightSource,
    context_tokens: int,
    kv_format: KVFormat | None,
    group: RankGroup,
    shares: Sequence[RankShare],
) -> tuple[DecoderModel, str]:
    """Returns this rank's model, and a sentence about what computes it. ``config``: of the whole
    model; ``weights``: this rank's part; ``shares``: of all ranks. No steps are captured. Raises
    what ``build_model`` does."""
    own = rank_config(config, shares[group.rank])
    rank_weights = RankWeights(weights, group, shares)
    model = build_model(own, rank_weights, context_tokens, kv_format)
    assert isinstance(model, DecoderModel), "transformers' modules are not split"
    words = "torch operators"
    if model.device.type == "cuda":
        _, words = install_kernels(model)
    model.layers = [spread(layer, config, group) for layer in model.layers]
    return model, words

"""What layers that keep states read of their files beside projections, float32."""

from __future__ import annotations

import torch

from inference.models.layers.configs import NEGATIVE_RATE
from inference.models.weights.weight_source import WeightSource


def conv_weight(weights: WeightSource, name: str) -> torch.Tensor:
    """(kernel, channels). Files have (channels, kernel), or (channels, 1, kernel). ``name``:
    without ``.weight``."""
    weight = weights.tensor(f"{name}.weight").float()
    return weight.flatten(1).t().contiguous()


def decay_rate(weights: WeightSource, name: str) -> torch.Tensor:
    """(heads,) how fast each forgets. Files have its logarithm, or the negated rate itself."""
    stored = weights.tensor(name).float().flatten()
    return -stored if name.endswith(NEGATIVE_RATE) else stored.exp()

"""Runs the tower over the largest image that a model accepts, while the caller measures the
memory."""

from __future__ import annotations

import math

import torch

from inference.engine.load.trial.trial_steps import LARGEST_TRIAL_OPERATIONS
from inference.models.backend import AnyModel
from inference.models.vision_config import VisionConfig


def run_largest_image(model: AnyModel) -> None:
    """Does nothing for a model without a tower. On a CPU it runs no more patches than a trial may
    take: what more of them would take is small beside the weights."""
    if (tower := model.tower) is None:
        return
    vision = tower.config
    num_patches = vision.most_patches
    if model.device.type == "cpu":
        num_patches = min(num_patches, LARGEST_TRIAL_OPERATIONS // block_weights(vision))
    side = max(math.isqrt(num_patches) // vision.merge, 1) * vision.merge
    tower(torch.zeros(side**2, vision.patch_features), (1, side, side))
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)


def block_weights(vision: VisionConfig) -> int:
    """How many weights of the tower's blocks a patch is multiplied with."""
    return (
        vision.depth * vision.hidden_size * (4 * vision.hidden_size + 2 * vision.intermediate_size)
    )

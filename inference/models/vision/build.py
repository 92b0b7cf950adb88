"""The tower that a config declares."""

from __future__ import annotations

from inference.models.vision.pixtral_tower import PixtralTower
from inference.models.vision.siglip_tower import SiglipTower
from inference.models.vision.tower import VisionTower
from inference.models.vision.windowed_tower import WindowedTower
from inference.models.vision_config import TowerKind, VisionConfig
from inference.models.weights.weight_source import WeightSource

AnyTower = VisionTower | WindowedTower | SiglipTower | PixtralTower
TOWERS: dict[TowerKind, type[AnyTower]] = {
    "qwen3_vl": VisionTower,
    "qwen2_5_vl": WindowedTower,
    "gemma3": SiglipTower,
    "idefics3": SiglipTower,
    "pixtral": PixtralTower,
}


def build_tower(config: VisionConfig | None, weights: WeightSource) -> AnyTower | None:
    """``None``: the model reads text alone. Raises ``MissingTensorError``."""
    return None if config is None else TOWERS[config.kind](config, weights)

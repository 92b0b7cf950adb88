"""Pixtral and Mistral Small 3 alone: images whose rows of tokens are apart."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch

from inference.loading.config.hub_config import parse_config
from inference.models.families.tower import with_pixels
from inference.protocol.images import image_layout
from inference.protocol.load_errors import BadFileError
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision import llama_gguf
from tests.inference.models.vision.tiny_pixtral import MISTRAL3, NAMED, PIXTRAL

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_OUTPUTS = 8


def test_a_tower_beside_either_architecture(tmp_path: Path) -> None:
    rows, path = [], MISTRAL3.save_gguf(tmp_path)
    patches = torch.from_numpy(MISTRAL3.patches(b"1", (1, 4, 6)))
    for kind in (gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.MISTRAL3):
        llama_gguf.save_text(MISTRAL3.make(), path, NAMED, kind)
        model = tiny_hybrid.on_torch(path, tmp_path)
        assert model.tower is not None
        rows.append(model.tower(patches, (1, 4, 6)).embeddings)
    assert torch.equal(*rows)


def test_llava_with_another_tower() -> None:
    config = PIXTRAL.make().config.to_dict()
    config["vision_config"] = {"model_type": "clip_vision_model"}
    with pytest.raises(BadFileError, match="'clip_vision_model', not 'pixtral'"):
        parse_config(config, {})


def test_what_published_configs_leave_out() -> None:
    tower = {
        "model_type": "pixtral",
        "head_dim": 64,
        "hidden_act": "silu",
        "image_size": 1540,
        "patch_size": 14,
        "rope_theta": 10000.0,
    }
    config = parse_config(
        {
            "model_type": "mistral3",
            "image_token_index": 10,
            "multimodal_projector_bias": False,
            "spatial_merge_size": 2,
            "vision_config": tower,
            "text_config": {"model_type": "mistral"},
        },
        {},
    )
    processor = {"size": {"longest_edge": 1540}, "patch_size": {"height": 14, "width": 14}}
    vision = with_pixels(config, processor).vision
    assert vision is not None
    assert (vision.depth, vision.intermediate_size, vision.activation) == (24, 4096, "silu")
    layout = image_layout(1920, 1080, vision)
    assert (layout.grid, layout.num_runs) == ((1, 62, 110), 31)
    assert vision.most_patches == 110**2

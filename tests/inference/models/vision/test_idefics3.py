"""Idefics3 and SmolVLM alone: images in tiles, and towers whose files declare what norms add."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.engine.load import trial
from inference.loading.config.hub_config import parse_config
from inference.models.families.tower import with_pixels
from inference.protocol.images import image_layout
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.test_image_files import vision_of
from tests.inference.models.vision.tiny_idefics3 import IDEFICS3, SIDE, SMOLVLM
from tests.inference.models.vision.tiny_images import TinyModel

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_OUTPUTS = 8
BOTH = pytest.mark.parametrize("tiny", [IDEFICS3, SMOLVLM], ids=["idefics3", "smolvlm"])


@BOTH
def test_a_trial_runs_one_tile(
    tiny: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_hybrid.on_torch(tiny.save(tmp_path / "model"), tmp_path)
    assert model.tower is not None
    grids = []
    monkeypatch.setattr(
        type(model.tower), "__call__", lambda self, patches, grid: grids.append(grid)
    )
    trial.run_largest_image(model)
    assert grids == [(1, SIDE, SIDE)]


def test_a_file_that_names_no_longest_side_is_not_cut(tmp_path: Path) -> None:
    changes = {"vision.preproc_image_size": None}
    vision = vision_of(IDEFICS3.save_gguf(tmp_path, **changes))
    assert vision.division == "none" and vision.most_tiles == 1


def test_what_published_configs_leave_out() -> None:
    tower = {"hidden_size": 768, "image_size": 512, "num_attention_heads": 12, "patch_size": 16}
    config = parse_config(
        {
            "model_type": "idefics3",
            "scale_factor": 4,
            "image_token_id": 49_190,
            "vision_config": tower,
            "text_config": {"model_type": "llama", "vocab_size": 49_280, "hidden_size": 576},
        },
        {},
    )
    processor = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    vision = with_pixels(config, processor).vision
    assert vision is not None
    assert (vision.depth, vision.intermediate_size, vision.norm_eps) == (12, 3072, 1e-6)
    layout = image_layout(1920, 1080, vision)
    assert (layout.grid, layout.rows, layout.columns) == ((13, 32, 32), 3, 4)
    assert layout.num_tokens(vision.merge) == 13 * 64
    assert vision.most_tiles == 17


def test_norms_of_a_tower_add_what_its_file_declares(tmp_path: Path) -> None:
    path = IDEFICS3.save_gguf(tmp_path, **{"vision.attention.layer_norm_epsilon": 0.25})
    assert vision_of(path).norm_eps == 0.25
    quiet = tiny_hybrid.on_torch(path, tmp_path)
    assert quiet.tower is not None
    grid = IDEFICS3.grid
    patches = torch.from_numpy(IDEFICS3.patches(b"1", grid))
    found = quiet.tower(patches, grid).embeddings
    changed = [m for m in IDEFICS3.make().modules() if isinstance(m, torch.nn.LayerNorm)]
    kept = [module.eps for module in changed]
    try:
        for module in changed:
            module.eps = 0.25
        wanted = IDEFICS3.features(torch.from_numpy(IDEFICS3.pixels_of(b"1", grid)), grid)
    finally:
        for module, eps in zip(changed, kept, strict=True):
            module.eps = eps
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

"""Towers of either format make transformers' rows, and loaded models read images with them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inference.engine.load import trial
from inference.models.backend import AnyModel
from inference.models.families.registry import FAMILIES
from inference.models.vision_config import VisionConfig
from inference.models.vision_tower import Tower
from tests.cases import each_case
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.families.rows import GGUFRow
from tests.inference.models.vision import tiny_mmproj
from tests.inference.models.vision.image_models import IMAGE_MODELS
from tests.inference.models.vision.tiny_gemma3 import OLD_NAMES
from tests.inference.models.vision.tiny_idefics3 import SIDE
from tests.inference.models.vision.tiny_images import TEXT, TinyModel, submit
from tests.inference.models.vision.tiny_pixtral import NAMED

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_OUTPUTS = 6


@each_case(
    ("name", "changes"),
    [
        *((name, {}) for name in IMAGE_MODELS if name != "qwen3_vl_moe"),
        ("gemma3", {"renamed": OLD_NAMES}),
    ],
    ids=str,
)
def test_a_tower_of_either_format(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    tiny = IMAGE_MODELS[name]
    packed = tiny_hybrid.on_torch(tiny.save_gguf(tmp_path / "gguf", **changes), tmp_path)
    dense = tiny_hybrid.on_torch(tiny.save(tmp_path / "dense"), tmp_path)
    assert config_of(packed) == config_of(dense)
    rows, of_dense = (rows_of(model, tiny) for model in (packed, dense))
    # The converter rounds some numbers: it adds one to norms of Gemma 3 and of hybrids.
    if name == "gemma3":
        torch.testing.assert_close(rows, of_dense, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(rows, of_dense)
    wanted = features_of(tiny)
    torch.testing.assert_close(of_dense[:, : wanted.shape[1]], wanted, rtol=1e-4, atol=1e-4)
    logits, of_dense = (tiny_hybrid.logits_of(model, TEXT[:9]) for model in (packed, dense))
    torch.testing.assert_close(logits, of_dense, rtol=1e-4, atol=1e-4)
    check_answer(tiny, packed)


NOT_OF_BOTH = {"image_mean", "image_std", "has_norm_plus_one", "has_swapped_mlp_names"}
"""What only an mmproj file holds, and how either holds its tensors."""


def config_of(model: AnyModel) -> dict[str, Any]:
    """The vision config, as float32 holds its numbers."""
    vision = model.config.vision
    assert vision is not None
    fields = {name: getattr(vision, name) for name in VisionConfig.__slots__}
    kept = {name: value for name, value in fields.items() if name not in NOT_OF_BOTH}
    return kept | {name: round(value, 9) for name, value in kept.items() if type(value) is float}


def rows_of(model: AnyModel, tiny: TinyModel) -> torch.Tensor:
    assert model.tower is not None
    found = model.tower(torch.from_numpy(tiny.patches(b"1", tiny.grid)), tiny.grid)
    return torch.cat((found.embeddings, *found.deepstack), dim=1)


def features_of(tiny: TinyModel) -> torch.Tensor:
    return tiny.features(torch.from_numpy(tiny.pixels_of(b"1", tiny.grid)), tiny.grid)


def check_answer(tiny: TinyModel, model: AnyModel) -> None:
    prompt = tiny.prompt(*tiny.parts()["several"])
    engine = tiny.engine(model)
    submit(engine, "it", prompt, NUM_OUTPUTS)
    assert tiny_hybrid.run(engine)[0] == {"it": tiny.greedy(prompt, NUM_OUTPUTS)}


def test_norms_add_what_a_file_declares_and_text_models_of_either_architecture(
    tmp_path: Path,
) -> None:
    shown = [family for family in FAMILIES if IMAGE_MODELS.keys() & set(family.model_types)]
    projectors = {one for family in FAMILIES for one in family.gguf_projectors}
    assert projectors == {one for family in shown for one in family.gguf_projectors}
    tiny = IMAGE_MODELS["idefics3"]
    path = tiny.save_gguf(tmp_path / "it", **{"vision.attention.layer_norm_epsilon": 0.25})
    changed = copy.deepcopy(tiny.make())
    for module in changed.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 0.25
    wanted = features_of(replace(tiny, make=lambda: changed))
    found = rows_of(tiny_hybrid.on_torch(path, tmp_path), tiny)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    tiny = IMAGE_MODELS["mistral3"]
    path, rows = tiny.save_gguf(tmp_path / "mistral3"), []
    for architecture in ("llama", "mistral3"):
        own = GGUFRow(architecture=architecture, interleaves=True)
        tiny_mmproj.save_text(tiny.make(), path, NAMED, own)
        rows.append(rows_of(tiny_hybrid.on_torch(path, tmp_path), tiny))
    assert torch.equal(*rows)


def test_a_checkpoint_as_qwen2_5_vl_was_published(tmp_path: Path) -> None:
    tiny = IMAGE_MODELS["qwen2_5_vl"]
    directory = tiny.save(tmp_path / "model")
    config = json.loads((directory / "config.json").read_bytes())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    flat = {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    flat |= {"eos_token_id": None, "bos_token_id": None}
    (directory / "config.json").write_text(json.dumps(text | config | flat))
    tensors = load_file(directory / "model.safetensors")
    published = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): tensor
        for name, tensor in tensors.items()
    }
    assert any(name.startswith("visual.") for name in published)
    save_file(published, directory / "model.safetensors", {"format": "pt"})
    check_answer(tiny, tiny_hybrid.on_torch(directory, tmp_path))


@each_case(
    ("name", "num_blocks", "grid"),
    [("gemma3", 20, (1, 4, 4)), ("idefics3", None, (1, SIDE, SIDE)), ("smolvlm", 20, (1, 4, 4))],
)
def test_a_trial_runs_a_tile_or_a_part_of_an_image(
    name: str,
    num_blocks: int | None,
    grid: tuple[int, int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``num_blocks``: how many rows' products the trial may compute; ``None``: as many as usual."""
    model = tiny_hybrid.on_torch(IMAGE_MODELS[name].save(tmp_path / "model"), tmp_path)
    assert model.tower is not None
    if num_blocks is not None:
        operations = num_blocks * trial.block_weights(model.tower.config)
        monkeypatch.setattr(trial, "LARGEST_TRIAL_OPERATIONS", operations)
    runs = []
    monkeypatch.setattr(
        Tower, "__call__", lambda self, patches, grid: runs.append((len(patches), grid))
    )
    trial.run_largest_image(model)
    assert runs == [(grid[1] * grid[2], grid)]

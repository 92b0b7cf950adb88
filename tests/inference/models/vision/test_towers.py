"""Towers of either format make transformers' rows, and loaded models read images with them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

from inference.engine.engine import Engine
from inference.engine.load.load_engine import load_engine
from inference.models.backend import AnyModel
from inference.models.vision_config import VisionConfig
from inference.protocol.images import VisionInput, image_layout
from inference.protocol.load import LoadSpec
from tests.inference.loading.test_image_processor import encoded, noise_image
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.image_models import IMAGE_MODELS
from tests.inference.models.vision.tiny_gemma3 import IMAGE_PX, OLD_NAMES
from tests.inference.models.vision.tiny_images import TEXT, Size, submit
from tests.inference.models.vision.tiny_pixtral import PATCH_PX

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_OUTPUTS = 6
BOTH_FORMATS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in IMAGE_MODELS if name != "qwen3_vl_moe"),
    ("gemma3", {"renamed": OLD_NAMES}),
]


@pytest.mark.parametrize(("name", "changes"), BOTH_FORMATS, ids=str)
def test_a_tower_of_either_format(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    tiny = IMAGE_MODELS[name]
    packed = tiny_hybrid.on_torch(tiny.save_gguf(tmp_path / "gguf", **changes), tmp_path)
    dense = tiny_hybrid.on_torch(tiny.save(tmp_path / "dense"), tmp_path)
    assert config_of(packed) == config_of(dense)
    patches = torch.from_numpy(tiny.patches(b"1", tiny.grid))
    rows, of_dense = (rows_of(model, patches, tiny.grid) for model in (packed, dense))
    # The converter rounds some numbers: it adds one to norms of Gemma 3 and of hybrids.
    if name == "gemma3":
        torch.testing.assert_close(rows, of_dense, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(rows, of_dense)
    wanted = tiny.features(torch.from_numpy(tiny.pixels_of(b"1", tiny.grid)), tiny.grid)
    torch.testing.assert_close(of_dense[:, : wanted.shape[1]], wanted, rtol=1e-4, atol=1e-4)
    logits, of_dense = (tiny_hybrid.logits_of(model, TEXT[:9]) for model in (packed, dense))
    torch.testing.assert_close(logits, of_dense, rtol=1e-4, atol=1e-4)
    prompt = tiny.prompt(*tiny.parts()["several"])
    engine = tiny.engine(packed)
    submit(engine, "it", prompt, NUM_OUTPUTS)
    found, _ = tiny_hybrid.run(engine)
    assert found == {"it": tiny.greedy(prompt, NUM_OUTPUTS)}


NOT_OF_BOTH = {"image_mean", "image_std", "has_norm_plus_one", "has_swapped_mlp_names"}
"""What only an mmproj file holds, and how either holds its tensors."""


def config_of(model: AnyModel) -> dict[str, Any]:
    """The vision config, as float32 holds its numbers."""
    vision = model.config.vision
    assert vision is not None
    fields = {name: getattr(vision, name) for name in VisionConfig.__slots__}
    kept = {name: value for name, value in fields.items() if name not in NOT_OF_BOTH}
    return kept | {name: round(value, 9) for name, value in kept.items() if type(value) is float}


def rows_of(model: AnyModel, patches: torch.Tensor, grid: tuple[int, int, int]) -> torch.Tensor:
    assert model.tower is not None
    found = model.tower(patches, grid)
    return torch.cat((found.embeddings, *found.deepstack), dim=1)


def processor_of(name: str, vision: VisionInput, *, is_low_detail: bool) -> Any:
    """transformers' own."""
    declared = IMAGE_MODELS[name].processor
    if name == "gemma3":
        return Gemma3ImageProcessorPil(**declared)
    if name in ("idefics3", "smolvlm"):
        return Idefics3ImageProcessorPil(**declared | {"do_image_splitting": not is_low_detail})
    unit_px = PATCH_PX * vision.merge
    units = {"patch_size": {"height": unit_px, "width": unit_px}}
    return PixtralImageProcessorPil(**declared | units)


Image = tuple[tuple[int, int], bool, Size]
"""An image is its pixels, whether it is in low detail, and its rows and columns of tiles or of
tokens."""
EXACT = {"dtype": "float32", "kv_dtype": "fp32"}
TILED: list[Image] = [((23, 14), False, (2, 3)), ((23, 14), True, (0, 0))]
LOADED: dict[str, list[Image]] = {
    "gemma3": [((23, 14), False, ())],
    "idefics3": TILED,
    "smolvlm": TILED,
    "mistral3": [((23, 14), False, (4, 6)), ((90, 31), False, (2, 6)), ((5, 90), False, (6, 1))],
    "llava": [((23, 14), False, (7, 12)), ((90, 31), False, (4, 12)), ((5, 90), False, (12, 1))],
}


@pytest.mark.parametrize("name", LOADED)
def test_images_through_a_loaded_model(name: str, tmp_path: Path, data_dir: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    tiny = IMAGE_MODELS[name]
    spec = LoadSpec(
        job_id="1",
        model="tiny",
        source=f"path:{tiny.save(tmp_path / 'model')}",
        devices=["cpu"],
        max_concurrent_sequences=4,
        kv_memory_bytes=2 * 1024**2,
        **({} if name == "gemma3" else EXACT),
    )
    found = load_engine(spec, data_dir, lambda _: None, check_when_idle=True)
    vision = found.report.vision
    assert vision is not None and found.report.compiled.startswith("native decoder")
    if name == "gemma3":
        assert vision.placeholder == "<start_of_image>" and vision.image_px == IMAGE_PX
    assert isinstance(found.engine, Engine)
    wanted = {}
    for size, is_low_detail, counted in LOADED[name]:
        data = encoded(noise_image(pillow, size), "PNG")
        prompt = tiny.prompt([5, 6, 7], (data, *counted), [8])
        layout = image_layout(*size, vision, is_low_detail=is_low_detail)
        assert prompt.images[0].grid == layout.grid
        if name in ("idefics3", "smolvlm"):
            assert (layout.rows, layout.columns) == counted
        processor = processor_of(name, vision, is_low_detail=is_low_detail)
        opened = [pillow.open(io.BytesIO(data)).convert("RGB")]
        (pixels,) = processor(images=opened, return_tensors="pt")["pixel_values"]
        sequence_id = f"{size}, low: {is_low_detail}"
        wanted[sequence_id] = tiny.greedy_of(tiny.make(), prompt.token_ids, [pixels], NUM_OUTPUTS)
        submit(found.engine, sequence_id, prompt, NUM_OUTPUTS)
    assert tiny_hybrid.run(found.engine)[0] == wanted

"""A load of a model with a tower: what its report says, and a picture through what it made."""

from __future__ import annotations

import hashlib
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine, load_engine
from inference.engine.load.trial.trial_pictures import run_largest_picture
from inference.loading import image_processor
from inference.models.vision.tower import VisionTower
from inference.models.vision_config import KEPT_ROWS_BYTES
from inference.protocol.engine import SequenceFailed
from inference.protocol.images import SequenceImage, VisionInput, image_grid, num_image_tokens
from inference.protocol.load import LoadSpec
from tests.inference.loading.test_image_processor import encoded, picture
from tests.inference.models.families import tiny_hybrid, tiny_vision

LIMITS = tiny_vision.PROCESSOR["size"]
INPUT = VisionInput(
    pad_token_id=tiny_vision.IMAGE_TOKEN,
    patch_px=tiny_vision.PATCH_PX,
    merge=tiny_vision.MERGE,
    min_pixels=LIMITS["shortest_edge"],
    max_pixels=LIMITS["longest_edge"],
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.save(tiny_vision.qwen3_vl(), tmp_path_factory.mktemp("qwen3_vl"))


def loaded(directory: Path, data_dir: Path) -> LoadedEngine:
    spec = LoadSpec(
        job_id="1",
        model="tiny",
        source=f"path:{directory}",
        devices=["cpu"],
        max_concurrent_sequences=4,
        kv_memory_bytes=2 * 1024**2,
    )
    return load_engine(spec, data_dir, lambda _: None, check_when_idle=True)


def test_an_image_through_a_loaded_model(
    directory: Path, tmp_path: Path, native_cache_dir: Path
) -> None:
    pillow = pytest.importorskip("PIL.Image")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "native").symlink_to(native_cache_dir)
    found = loaded(directory, tmp_path)
    assert found.report.vision == INPUT
    assert found.report.actual_bytes > KEPT_ROWS_BYTES < found.report.estimated_bytes
    assert found.report.compiled.startswith("native decoder")
    data = encoded(picture(pillow, (23, 14)), "PNG")
    grid = image_grid(23, 14, INPUT)
    pads = [tiny_vision.IMAGE_TOKEN] * num_image_tokens(grid, INPUT.merge)
    image = SequenceImage(
        digest=hashlib.sha256(data).hexdigest(),
        data=data,
        first_token=3,
        num_tokens=len(pads),
        grid=grid,
    )
    prompt = tiny_vision.Prompt([5, 6, 7, *pads, 8])
    prompt.images.append(image)
    config = tiny_hybrid.opened(directory, tmp_path).config
    processor, _ = image_processor.open_image_processor(directory, config)
    assert processor is not None and isinstance(found.engine, Engine)
    patches = torch.from_numpy(processor.patches(data, grid))
    wanted = tiny_vision.greedy_of(tiny_vision.qwen3_vl(), prompt, [patches], 6)
    tiny_vision.submit(found.engine, "it", prompt, 6)
    answers, _ = tiny_hybrid.run(found.engine)
    assert answers == {"it": wanted}


def test_without_pillow_it_is_a_text_model(
    directory: Path, tmp_path: Path, native_cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "native").symlink_to(native_cache_dir)
    monkeypatch.setattr(image_processor, "find_spec", lambda name: None)
    found = loaded(directory, tmp_path)
    assert found.report.vision is None
    assert isinstance(found.engine, Engine)
    picture_of_seed = tiny_vision.Prompt([5], (b"1", 2, 2), [6])
    tiny_vision.submit(found.engine, "it", picture_of_seed, 3)
    (refused,) = found.engine.step().outputs
    assert isinstance(refused, SequenceFailed) and refused.code == "vision_unsupported"
    assert "no images: Pillow is not installed" in found.report.quantization


def test_the_trial_runs_the_largest_image(directory: Path, tmp_path: Path) -> None:
    model = tiny_vision.on_torch(directory, tmp_path)
    tower = model.tower
    assert tower is not None
    with patch.object(
        VisionTower, "__call__", autospec=True, side_effect=VisionTower.__call__
    ) as spy:
        run_largest_picture(model)
    ((_, patches, grid),) = (call.args for call in spy.call_args_list)
    assert grid == (1, 10, 10) and len(patches) == 100


def test_the_tower_is_in_the_estimate(directory: Path, tmp_path: Path) -> None:
    opened = tiny_hybrid.opened(directory, tmp_path)
    need, vision = opened.need, opened.config.vision
    assert vision is not None and need.image_bytes == KEPT_ROWS_BYTES
    assert need.required_bytes == need.load_bytes + need.kv_bytes + KEPT_ROWS_BYTES
    step_bytes = vision.step_bytes(4)
    assert need.step_bytes > step_bytes > 100 * 4 * 6 * vision.hidden_size

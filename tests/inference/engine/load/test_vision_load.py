"""A load of a model with a vision tower: its report, and an image through the loaded model."""

from __future__ import annotations

import gc
import hashlib
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from inference.engine.engine import Engine
from inference.engine.load.load_engine import LoadedEngine, load_engine
from inference.engine.load.trial import run_largest_image
from inference.loading import image_processor
from inference.models.vision.tower import Tower
from inference.models.vision_config import KEPT_ROWS_BYTES
from inference.protocol.engine import SequenceFailed
from inference.protocol.images import (
    SequenceImage,
    TokenRun,
    VisionInput,
    image_grid,
    num_image_tokens,
)
from tests.inference.engine.load.loads import cpu_spec
from tests.inference.loading.test_image_processor import encoded, noise_image
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN, submit
from tests.inference.models.vision.tiny_qwen import MERGE, PATCH_PX, PROCESSOR, QWEN3_VL

LIMITS = PROCESSOR["size"]
INPUT = VisionInput(
    pad_token_id=IMAGE_TOKEN,
    patch_px=PATCH_PX,
    merge=MERGE,
    min_pixels=LIMITS["shortest_edge"],
    max_pixels=LIMITS["longest_edge"],
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return QWEN3_VL.save(tmp_path_factory.mktemp("qwen3_vl"))


def loaded(directory: Path, data_dir: Path) -> LoadedEngine:
    spec = cpu_spec(directory, max_concurrent_sequences=4, kv_memory_bytes=2 * 1024**2)
    gc.collect()  # what earlier tests left is not freed while the load's memory is measured
    return load_engine(spec, data_dir, lambda _: None, check_when_idle=True)


@pytest.fixture(params=["safetensors", "gguf"])
def source(request: pytest.FixtureRequest, directory: Path, tmp_path: Path) -> Path:
    if request.param == "safetensors":
        return directory
    return QWEN3_VL.save_gguf(tmp_path / "gguf").parent


def test_an_image_through_a_loaded_model(
    source: Path, tmp_path: Path, native_cache_dir: Path
) -> None:
    pillow = pytest.importorskip("PIL.Image")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "native").symlink_to(native_cache_dir)
    found = loaded(source, tmp_path)
    assert found.report.vision == INPUT
    assert found.report.actual_bytes > KEPT_ROWS_BYTES < found.report.estimated_bytes
    assert found.report.compiled.startswith("native decoder")
    data = encoded(noise_image(pillow, (23, 14)), "PNG")
    grid = image_grid(23, 14, INPUT)
    pads = [IMAGE_TOKEN] * num_image_tokens(grid, INPUT.merge)
    image = SequenceImage(
        digest=hashlib.sha256(data).hexdigest(),
        data=data,
        runs=[TokenRun(3, len(pads))],
        grid=grid,
    )
    prompt = QWEN3_VL.prompt([5, 6, 7, *pads, 8])
    prompt.images.append(image)
    config = tiny_hybrid.opened(source, tmp_path).config
    processor, _ = image_processor.open_image_processor(source, config)
    assert processor is not None and isinstance(found.engine, Engine)
    patches = torch.from_numpy(processor.patches(data, grid))
    wanted = QWEN3_VL.greedy_of(QWEN3_VL.make(), prompt.token_ids, [patches], 6, [grid])
    submit(found.engine, "it", prompt, 6)
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
    image_of_seed = QWEN3_VL.prompt([5], (b"1", 2, 2), [6])
    submit(found.engine, "it", image_of_seed, 3)
    (refused,) = found.engine.step().outputs
    assert isinstance(refused, SequenceFailed) and refused.code == "vision_unsupported"
    assert "no images: Pillow is not installed" in found.report.quantization


def test_the_trial_runs_the_largest_image(directory: Path, tmp_path: Path) -> None:
    model = tiny_hybrid.on_torch(directory, tmp_path)
    tower = model.tower
    assert tower is not None
    with patch.object(Tower, "__call__", autospec=True, side_effect=Tower.__call__) as spy:
        run_largest_image(model)
    ((_, patches, grid),) = (call.args for call in spy.call_args_list)
    assert grid == (1, 10, 10) and len(patches) == 100

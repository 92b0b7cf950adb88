"""Images from GGUF: a tower in an mmproj file, as loads, plans and checks of files find it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from inference.loading.costs.read_costs import read_costs
from inference.loading.file_check import FileCheckOrder, check
from inference.loading.sources.sources import path_files
from inference.models.vision_config import KEPT_ROWS_BYTES
from inference.protocol.load import LoadSpec
from tests.inference.loading import conftest
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.test_image_files import described
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN
from tests.inference.models.vision.tiny_qwen import QWEN3_VL


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return QWEN3_VL.save_gguf(tmp_path_factory.mktemp("qwen3_vl"))


def test_its_own_processor(saved: Path) -> None:
    found = described(saved)
    vision = found.config.vision
    assert found.projector == saved.parent / "mmproj-F32.gguf" and not found.left_out
    assert vision is not None and vision.image_mean == vision.image_std == (0.5, 0.5, 0.5)
    assert (vision.min_pixels, vision.max_pixels) == (16, 400)
    assert vision.image_token_id == IMAGE_TOKEN
    assert "model.visual.patch_embed.proj.weight" in found.files.names


def test_a_model_that_is_to_read_no_images(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = described(saved, "none")
    assert found.config.vision is None and found.projector is None
    assert not any(name.startswith("model.visual.") for name in found.files.names)
    monkeypatch.setenv("HELEXA_VISION_MAX_PIXELS", "0")
    assert described(saved).config.vision is None


def test_an_mmproj_file_elsewhere(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.gguf").symlink_to(saved)
    assert described(tmp_path / "alone.gguf").config.vision is None
    named = described(tmp_path / "alone.gguf", str(saved.parent / "mmproj-F32.gguf"))
    assert named.config.vision is not None


def test_a_check_of_downloaded_files_reads_it(saved: Path, tmp_path: Path) -> None:
    spec = LoadSpec(job_id="j", model="m", source="huggingface:a/b", devices=["cpu"])
    broken = QWEN3_VL.save_mmproj(tmp_path / "mmproj.gguf", use_gelu=None)
    for projector, code in ((saved.parent / "mmproj-F32.gguf", None), (broken, "bad_file")):
        weights = [str(saved), str(projector)]
        found = check(FileCheckOrder(spec=spec, weights=weights, free_memory_bytes=2**30))
        assert (found.failure and found.failure.code) == code


def test_plans_and_estimates_count_it(saved: Path, tmp_path: Path) -> None:
    spec = LoadSpec(job_id="j", model="m", source=f"path:{saved}")
    with_it, without = (
        read_costs(path_files(saved, file, 0), spec).outer_bytes for file in (None, "none")
    )
    opened = tiny_hybrid.opened(saved, tmp_path)
    opened.close()
    names = [name for name in opened.files.names if name.startswith("model.visual.")]
    num_weights = sum(math.prod(opened.files.shape_of(name)) for name in names)
    assert with_it.cpu - without.cpu == 4 * num_weights + KEPT_ROWS_BYTES
    assert with_it.cuda - without.cuda == 2 * num_weights + KEPT_ROWS_BYTES
    assert opened.need.image_bytes == KEPT_ROWS_BYTES
    assert opened.projector == saved.parent / "mmproj-F32.gguf"


def test_a_tower_in_8_bits_becomes_dense(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "model-F32.gguf").symlink_to(saved)
    QWEN3_VL.save_mmproj(tmp_path / "mmproj-Q8_0.gguf", is_rounded=True)
    opened = conftest.opened(tmp_path / "model-F32.gguf", tmp_path, quantization="q8")
    name = "model.visual.merger.linear_fc1.weight"
    assert opened.files.format_of(name) == "Q8_0"
    assert opened.files.format_of("model.layers.0.self_attn.q_proj.weight") == "q8"
    wanted = QWEN3_VL.make().state_dict()[name]
    torch.testing.assert_close(opened.weights.tensor(name), wanted, rtol=0.02, atol=0.02)
    opened.close()

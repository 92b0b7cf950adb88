"""Towers in mmproj files beside a GGUF text model: what they declare, which are refused, and how
loads, plans and checks of files find them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.loading.described import DescribedModel, describe_model
from inference.loading.file_check import FileCheckOrder, check
from inference.loading.read_costs import read_costs
from inference.loading.sources.sources import path_files
from inference.models.vision_config import KEPT_ROWS_BYTES, VisionConfig
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import (
    BadFileError,
    BadSourceError,
    LoadError,
    MissingTensorError,
)
from tests.cases import each_case
from tests.inference.loading import conftest
from tests.inference.models.families import tiny_hybrid
from tests.inference.models.vision.image_models import IMAGE_MODELS
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN
from tests.inference.models.vision.tiny_qwen import QWEN3_VL

Changes = dict[str, Any]


def described(path: Path, file: str | None = None) -> DescribedModel:
    found = describe_model(path_files(path, file, 2**30), "cpu")
    found.files.close()
    return found


def vision_of(path: Path) -> VisionConfig:
    found = described(path).config.vision
    assert found is not None
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return QWEN3_VL.save_gguf(tmp_path_factory.mktemp("qwen3_vl"))


def test_a_file_beside_the_model_is_found_unless_there_are_to_be_no_images(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, mmproj = described(saved), saved.parent / "mmproj-F32.gguf"
    vision = found.config.vision
    assert found.projector == mmproj and not found.left_out
    assert vision is not None and vision.image_mean == vision.image_std == (0.5, 0.5, 0.5)
    assert (vision.min_pixels, vision.max_pixels) == (16, 400)
    assert vision.image_token_id == IMAGE_TOKEN
    assert "model.visual.patch_embed.proj.weight" in found.files.names
    found = described(saved, "none")
    assert found.config.vision is None and found.projector is None
    assert not any(name.startswith("model.visual.") for name in found.files.names)
    (tmp_path / "alone.gguf").symlink_to(saved)
    assert described(tmp_path / "alone.gguf").config.vision is None
    assert described(tmp_path / "alone.gguf", str(mmproj)).config.vision is not None
    monkeypatch.setenv("HELEXA_VISION_MAX_PIXELS", "0")
    assert described(saved).config.vision is None


def test_what_a_file_or_a_vocabulary_leaves_out(tmp_path: Path) -> None:
    gemma3, idefics3 = IMAGE_MODELS["gemma3"], IMAGE_MODELS["idefics3"]
    unused = {120: "120", 99: "<unused7>", 101: "<unused8>"}
    vision = vision_of(gemma3.save_gguf(tmp_path / "gemma3", tokens=unused))
    assert vision.image_token_id == 101 and vision.text is not None
    assert vision.text.written == "\n\n<start_of_image><unused8><end_of_image>\n\n"
    changes = {"vision.preproc_image_size": None}
    vision = vision_of(idefics3.save_gguf(tmp_path / "idefics3", **changes))
    assert vision.division == "none" and vision.most_tiles == 1


def test_plans_estimates_and_checks_of_downloaded_files_count_it(
    saved: Path, tmp_path: Path
) -> None:
    spec = LoadSpec(job_id="j", model="m", source="huggingface:a/b", devices=["cpu"])
    broken = QWEN3_VL.save_mmproj(tmp_path / "mmproj.gguf", use_gelu=None)
    for projector, code in ((saved.parent / "mmproj-F32.gguf", None), (broken, "bad_file")):
        weights = [str(saved), str(projector)]
        found = check(FileCheckOrder(spec=spec, weights=weights, free_memory_bytes=2**30))
        assert (found.failure and found.failure.code) == code
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


OF_ANOTHER_MODEL = {
    "gemma3": [
        ({"tokens": {120: "120"}}, "neither <image_soft_token> nor"),
        ({"projector_type": "qwen3vl_merger"}, "and gemma3 has 'gemma3'"),
    ],
    "idefics3": [
        ({"tokens": {120: "120"}}, "vocabulary has no <image>"),
        ({"tokens": {121: "121"}}, "no <fake_token_around_image>"),
        ({"projector_type": "gemma3"}, "and llama has 'idefics3' or 'pixtral'"),
    ],
    "mistral3": [
        ({"tokens": {120: "120"}}, r"vocabulary has no \[IMG\]"),
        ({"tokens": {121: "121"}}, r"no \[IMG_BREAK\]"),
    ],
    "qwen3_vl": [
        ({"projector_type": "resampler"}, "'resampler', which is not .* known: qwen2.5vl_merger"),
        ({"projector_type": "qwen2.5vl_merger"}, "and qwen3vl has 'qwen3vl_merger'"),
        ({"projector_type": None}, "projector is None"),
        ({"architecture": "qwen3vl"}, "its architecture is 'qwen3vl'"),
        ({"vision.projection_dim": 64}, "rows have 64 numbers, and the text model's 32"),
    ],
}


@each_case(
    ("name", "changes", "reason"),
    [(name, *row) for name, rows in OF_ANOTHER_MODEL.items() for row in rows],
    ids=str,
)
def test_a_file_of_another_model(name: str, changes: Changes, reason: str, tmp_path: Path) -> None:
    path = IMAGE_MODELS[name].save_gguf(tmp_path, **changes)
    found = described(path)
    assert found.config.vision is None
    with pytest.raises(BadSourceError, match=f"mmproj-F32.gguf is not used: .*{reason}") as refused:
        described(path, "mmproj-F32.gguf")
    assert found.left_out == f"no images: {refused.value}"


MALFORMED = {
    "gemma3": [
        ({"use_gelu": None}, "activation"),
        ({"vision.image_size": 14}, "declare 49 patches of 2 pixels"),
        ({"vision.projector.scale_factor": 4}, "4 x 4 patches of 2"),
        ({"vision.attention.head_count": 3}, "3 equal heads"),
    ],
    "idefics3": [
        ({"use_gelu": None}, "activation"),
        ({"vision.image_size": 15}, "declare 49 patches of 2 pixels"),
        ({"vision.projector.scale_factor": 4}, "4 x 4 patches of 2"),
        ({"vision.preproc_image_size": 5000}, "5000 pixels"),
        ({"vision.attention.head_count": 3}, "3 equal heads"),
        ({"vision.attention.layer_norm_epsilon": -1.0}, "norms add is -1"),
    ],
    "mistral3": [
        ({"use_silu": None}, "activation"),
        ({"vision.patch_size": 4}, "declare patches of 4 pixels"),
        ({"vision.spatial_merge_size": 4}, "16 x 64"),
        ({"vision.attention.head_count": 3}, "cannot be rotated"),
        ({"vision.attention.layer_norm_epsilon": -1.0}, "norms add is -1"),
    ],
    "qwen2_5_vl": [({"use_silu": None}, "activation")],
    "qwen3_vl": [
        ({"use_gelu": None}, "activation"),
        ({"vision.patch_size": None}, "lacks clip.vision.patch_size"),
        ({"vision.attention.layer_norm_epsilon": 1e-5}, "1e-05, not 1e-06"),
        ({"vision.image_mean": None}, "lack clip.vision.image_mean"),
        ({"vision.image_std": [0.5, 0.0, 0.5]}, "deviation"),
        ({"vision.image_max_pixels": 8}, "16 to 8 pixels"),
        ({"vision.image_min_pixels": 1, "vision.image_max_pixels": 15}, "1 to 15"),
        ({"vision.patch_size": 200, "vision.image_max_pixels": 2**30}, "of 200 pixels"),
        ({"vision.spatial_merge_size": 4}, "mm.0.weight of 64 numbers"),
        ({"vision.is_deepstack_layers": [True]}, "no list of 3 marks"),
        ({"vision.is_deepstack_layers": [False, False, True]}, "v.deepstack.0"),
        ({"vision.block_count": 4}, "no list of 4 marks"),
        ({"vision.attention.head_count": 3}, "cannot be rotated"),
        (
            {"vision.block_count": 4, "vision.is_deepstack_layers": [True, True, False, False]},
            "blocks.3",
        ),
        ({"vision.feed_forward_length": 28}, "24 x 16"),
    ],
}


@each_case(
    ("name", "changes", "reason"),
    [(name, *row) for name, rows in MALFORMED.items() for row in rows],
    ids=str,
)
def test_a_malformed_file(name: str, changes: Changes, reason: str, tmp_path: Path) -> None:
    path = IMAGE_MODELS[name].save_gguf(tmp_path, **changes)
    kind: type[LoadError] = MissingTensorError if reason == "blocks.3" else BadFileError
    with pytest.raises(kind, match=reason):
        described(path)

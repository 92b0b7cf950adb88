"""A vision tower's config as it is read, and the tensors that published checkpoints must hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForImageTextToText

from inference.loading.config.hub_config import parse_config, read_directory_config
from inference.loading.weights.named_files import without_absent_tower
from inference.models.families.registry import family_of
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.models.families.test_published import check_declared, published

FOLDER = Path(__file__).parent / "published"
QWEN2_5_VL_3B, QWEN3_VL_8B = (
    json.loads((FOLDER / f"{name}.json").read_bytes()) for name in ("qwen2.5-vl-3b", "qwen3-vl-8b")
)
TOWER: dict[str, Any] = QWEN3_VL_8B["vision_config"]
QWEN3_5_27B = published("qwen3.5-27b")
QWEN3_5 = QWEN3_5_27B | {
    "image_token_id": 248056,
    "vision_config": TOWER | {"out_hidden_size": 5120, "deepstack_visual_indexes": []},
}
PROCESSOR: dict[str, Any] = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
}


@each_case("facts", [QWEN2_5_VL_3B, QWEN3_VL_8B, QWEN3_5], ids=lambda facts: facts["model_type"])
def test_the_declared_tensors_are_the_models(facts: dict[str, Any]) -> None:
    check_declared(facts, AutoModelForImageTextToText)


def saved(directory: Path, config: dict[str, Any], processor: dict[str, Any] | None) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (directory / "preprocessor_config.json").write_text(json.dumps(processor))
    return directory


def test_a_directory_with_a_processor(tmp_path: Path) -> None:
    vision = read_directory_config(saved(tmp_path, QWEN3_VL_8B, PROCESSOR)).vision
    assert vision is not None
    assert (vision.min_pixels, vision.max_pixels) == (65536, 16777216)
    assert vision.image_token_id == 151655 and vision.mrope_section == (24, 20, 20)
    assert vision.deepstack_layers == (8, 16, 24) and vision.most_patches == 65536


def test_a_tower_with_windows(tmp_path: Path) -> None:
    processor = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14}
    vision = read_directory_config(saved(tmp_path, QWEN2_5_VL_3B, processor)).vision
    assert vision is not None and vision.kind == "qwen2_5_vl"
    assert (vision.window_px, vision.full_attention_layers) == (112, (7, 15, 23, 31))
    assert vision.mrope_section == (16, 24, 24) and not vision.is_mrope_interleaved


def test_pixels_as_older_processors_write_them(tmp_path: Path) -> None:
    processor = {"min_pixels": 3136, "max_pixels": 12845056}
    vision = read_directory_config(saved(tmp_path, QWEN3_5, processor)).vision
    assert vision is not None and (vision.min_pixels, vision.max_pixels) == (3136, 12845056)


@each_case(
    ("config", "processor"),
    [
        (QWEN3_VL_8B, None),
        (QWEN3_5_27B, PROCESSOR),
        ({key: QWEN3_5[key] for key in QWEN3_5 if key != "vision_config"}, PROCESSOR),
    ],
    ids=["no processor", "a tower that is not described", "no tower"],
)
def test_checkpoints_that_are_read_as_text_models(
    tmp_path: Path, config: dict[str, Any], processor: dict[str, Any] | None
) -> None:
    found = read_directory_config(saved(tmp_path, config, processor))
    assert found.vision is None
    assert not any("visual" in tensor.name for tensor in family_of(found).tensors(found))


def test_a_tower_that_is_described_and_not_there(tmp_path: Path) -> None:
    config = read_directory_config(saved(tmp_path, QWEN3_5, PROCESSOR))
    assert without_absent_tower(config, ["model.visual.merger.norm.weight"]) is config
    assert without_absent_tower(config, ["lm_head.weight"]).vision is None


@each_case(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "'relu' is not gelu"),
        ({"num_position_embeddings": 2305}, "no square"),
        ({"out_hidden_size": 1024}, "1024 numbers, and the decoder's 4096"),
        ({"num_heads": 7}, "cannot be rotated"),
    ],
)
def test_towers_that_would_be_computed_wrongly(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadFileError, match=message):
        parse_config(QWEN3_VL_8B | {"vision_config": TOWER | changes}, {})


@each_case(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"window_size": 14}, "hold no row"),
        ({"fullatt_block_indexes": [32]}, "of 32 see the whole image"),
    ],
)
def test_windows_that_would_be_computed_wrongly(changes: dict[str, Any], message: str) -> None:
    tower = QWEN2_5_VL_3B["vision_config"] | changes
    with pytest.raises(BadFileError, match=message):
        parse_config(QWEN2_5_VL_3B | {"vision_config": tower}, {})


@each_case(
    "processor",
    [{"patch_size": 14}, {"size": {}}, {"max_pixels": 10, "min_pixels": 100}],
    ids=str,
)
def test_processors_of_something_else(tmp_path: Path, processor: dict[str, Any]) -> None:
    with pytest.raises(BadFileError, match=r"preprocessor_config\.json"):
        read_directory_config(saved(tmp_path, QWEN3_VL_8B, PROCESSOR | processor))

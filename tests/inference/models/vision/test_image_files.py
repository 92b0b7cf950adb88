"""What files declare of a tower, and which of them are refused: mmproj files beside a text model,
and config.json with preprocessor_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.loading.config.hub_config import parse_config
from inference.loading.described import DescribedModel, describe_model
from inference.loading.sources.sources import path_files
from inference.models.families.tower import with_pixels
from inference.models.vision_config import VisionConfig
from inference.protocol.load_errors import (
    BadFileError,
    BadSourceError,
    LoadError,
    MissingTensorError,
)
from tests.cases import each_case
from tests.inference.models.vision.image_models import IMAGE_MODELS

Changes = dict[str, Any]


def described(path: Path, file: str | None = None) -> DescribedModel:
    found = describe_model(path_files(path, file, 2**30), "cpu")
    found.files.close()
    return found


def vision_of(path: Path) -> VisionConfig:
    found = described(path).config.vision
    assert found is not None
    return found


WIDE = {"vision.projection_dim": 64}
OF_ANOTHER_MODEL = {
    "gemma3": [
        ({"tokens": {120: "120"}}, "neither <image_soft_token> nor"),
        (WIDE, "its rows have 64 numbers"),
        ({"projector_type": "qwen3vl_merger"}, "and gemma3 has 'gemma3'"),
    ],
    "idefics3": [
        ({"tokens": {120: "120"}}, "vocabulary has no <image>"),
        ({"tokens": {121: "121"}}, "no <fake_token_around_image>"),
        (WIDE, "its rows have 64 numbers"),
        ({"projector_type": "gemma3"}, "and llama has 'idefics3'"),
        ({"projector_type": "mlp"}, "'mlp', which is not computed here"),
    ],
    "mistral3": [
        ({"tokens": {120: "120"}}, r"vocabulary has no \[IMG\]"),
        ({"tokens": {121: "121"}}, r"no \[IMG_BREAK\]"),
        (WIDE, "its rows have 64 numbers"),
        ({"projector_type": "gemma3"}, "and llama has 'idefics3' or 'pixtral'"),
    ],
    "qwen3_vl": [
        (
            {"projector_type": "resampler"},
            "'resampler', which is not .* known: qwen2.5vl_merger, qwen3vl",
        ),
        ({"projector_type": "qwen2.5vl_merger"}, "and qwen3vl has 'qwen3vl_merger'"),
        ({"projector_type": None}, "projector is None"),
        ({"architecture": "qwen3vl"}, "its architecture is 'qwen3vl'"),
        (WIDE, "its rows have 64 numbers, and the text model's 32"),
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


NO_DEVIATION = {"vision.image_std": [0.5, 0.0, 0.5]}
THREE_HEADS = {"vision.attention.head_count": 3}
MALFORMED = {
    "gemma3": [
        ({"use_gelu": None}, "activation"),
        ({"vision.image_size": 14}, "declare 49 patches of 2 pixels"),
        ({"vision.projector.scale_factor": 4}, "4 x 4 patches of 2"),
        (THREE_HEADS, "3 equal heads"),
        (NO_DEVIATION, "deviation"),
        ({"vision.feed_forward_length": 28}, "24 x 16"),
    ],
    "idefics3": [
        ({"use_gelu": None}, "activation"),
        ({"vision.image_size": 15}, "declare 49 patches of 2 pixels"),
        ({"vision.projector.scale_factor": 4}, "4 x 4 patches of 2"),
        ({"vision.preproc_image_size": 5000}, "5000 pixels"),
        (THREE_HEADS, "3 equal heads"),
        ({"vision.attention.layer_norm_epsilon": -1.0}, "norms add is -1"),
        (NO_DEVIATION, "deviation"),
        ({"vision.feed_forward_length": 28}, "24 x 16 and should be 28"),
    ],
    "mistral3": [
        ({"use_silu": None}, "activation"),
        ({"vision.patch_size": 4}, "declare patches of 4 pixels"),
        ({"vision.spatial_merge_size": 4}, "16 x 64"),
        (THREE_HEADS, "cannot be rotated"),
        ({"vision.attention.layer_norm_epsilon": -1.0}, "norms add is -1"),
        (NO_DEVIATION, "deviation"),
        ({"vision.feed_forward_length": 28}, "should be 28 x 16"),
    ],
    "qwen3_vl": [
        ({"use_gelu": None}, "activation"),
        ({"vision.patch_size": None}, "lacks clip.vision.patch_size"),
        ({"vision.attention.layer_norm_epsilon": 1e-5}, "1e-05, not 1e-06"),
        ({"vision.image_mean": None}, "lack clip.vision.image_mean"),
        (NO_DEVIATION, "deviation"),
        ({"vision.image_max_pixels": 8}, "16 to 8 pixels"),
        ({"vision.image_min_pixels": 1, "vision.image_max_pixels": 15}, "1 to 15"),
        ({"vision.patch_size": 200, "vision.image_max_pixels": 2**30}, "of 200 pixels"),
        ({"vision.spatial_merge_size": 4}, "mm.0.weight of 64 numbers"),
        ({"vision.is_deepstack_layers": [True]}, "no list of 3 marks"),
        ({"vision.is_deepstack_layers": [False, False, True]}, "v.deepstack.0"),
        ({"vision.block_count": 4}, "no list of 4 marks"),
        (THREE_HEADS, "cannot be rotated"),
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


WRONGLY_COMPUTED: dict[str, list[tuple[Changes, Changes, Changes, str]]] = {
    "gemma3": [
        ({}, {"hidden_act": "silu"}, {}, "hidden_act 'silu'"),
        ({}, {"layer_norm_eps": 1e-5}, {}, "layer_norm_eps"),
        ({}, {"image_size": 13}, {}, "no whole number"),
        ({}, {}, {"size": {"height": 24, "width": 12}}, "size is"),
        ({}, {}, {"do_pan_and_scan": True}, "do_pan_and_scan"),
    ],
    "idefics3": [
        ({}, {"hidden_act": "silu"}, {}, "hidden_act 'silu'"),
        ({}, {"image_size": 15}, {}, "no whole number"),
        ({}, {}, {"max_image_size": {"longest_edge": 24}}, "max_image_size is 24"),
        ({}, {}, {"size": {"height": 24, "width": 24}}, "size is None"),
        ({}, {}, {"do_resize": False}, "do_resize"),
    ],
    "mistral3": [
        ({}, {"hidden_act": "relu"}, {}, "neither gelu nor silu"),
        ({}, {"head_dim": 4}, {}, "head_dim is 4, not 8"),
        ({"vision_feature_layer": -2}, {}, {}, "vision_feature_layer is -2"),
        ({"projector_hidden_act": "relu"}, {}, {}, "projector_hidden_act"),
        ({}, {}, {"size": {"height": 24, "width": 24}}, "size is None"),
        ({}, {}, {"patch_size": 14}, "patch_size is 14, the tower's is 2"),
        ({}, {}, {"do_resize": False}, "do_resize"),
    ],
}
"""By model: changes to config.json, to its vision_config and to preprocessor_config.json."""


@each_case(
    ("name", "outer", "vision", "processor", "reason"),
    [(name, *row) for name, rows in WRONGLY_COMPUTED.items() for row in rows],
    ids=str,
)
def test_what_would_be_computed_wrongly(
    name: str, outer: Changes, vision: Changes, processor: Changes, reason: str
) -> None:
    tiny = IMAGE_MODELS[name]
    config = tiny.make().config.to_dict() | outer
    config["vision_config"] = config["vision_config"] | vision
    with pytest.raises(BadFileError, match=reason):
        with_pixels(parse_config(config, {}), tiny.processor | processor)

"""A tower's config.json and preprocessor_config.json as they are read, and what is refused."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from inference.loading.hub_config import parse_config, read_directory_config
from inference.loading.weights.named_files import without_absent_tower
from inference.models.families.registry import family_of
from inference.models.families.tower import with_pixels
from inference.protocol.images import image_layout
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.models.families.test_configs import PUBLISHED, QWEN3_5
from tests.inference.models.vision.image_models import IMAGE_MODELS

Facts = dict[str, Any]
QWEN2_5_VL_3B, QWEN3_VL_8B = PUBLISHED["qwen2.5-vl-3b"], PUBLISHED["qwen3-vl-8b"]
PROCESSOR: Facts = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
}
OLD_PROCESSOR = {"min_pixels": 3136, "max_pixels": 12845056}
IDEFICS3 = {
    "model_type": "idefics3",
    "scale_factor": 4,
    "image_token_id": 49_190,
    "vision_config": {
        "hidden_size": 768,
        "image_size": 512,
        "num_attention_heads": 12,
        "patch_size": 16,
    },
    "text_config": {"model_type": "llama", "vocab_size": 49_280, "hidden_size": 576},
}
MISTRAL3 = {
    "model_type": "mistral3",
    "image_token_index": 10,
    "multimodal_projector_bias": False,
    "spatial_merge_size": 2,
    "vision_config": {
        "model_type": "pixtral",
        "head_dim": 64,
        "hidden_act": "silu",
        "image_size": 1540,
        "patch_size": 14,
        "rope_theta": 10000.0,
    },
    "text_config": {"model_type": "mistral"},
}


def saved(directory: Path, config: Facts, processor: Facts | None) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    if processor is not None:
        (directory / "preprocessor_config.json").write_text(json.dumps(processor))
    return directory


READ: list[tuple[Facts, Facts, Facts]] = [
    (
        QWEN3_VL_8B,
        PROCESSOR,
        {"min_pixels": 65536, "max_pixels": 16777216, "image_token_id": 151655}
        | {"mrope_section": (24, 20, 20), "deepstack_layers": (8, 16, 24), "most_patches": 65536},
    ),
    (
        QWEN2_5_VL_3B,
        OLD_PROCESSOR | {"patch_size": 14},
        {"kind": "qwen2_5_vl", "window_px": 112, "full_attention_layers": (7, 15, 23, 31)}
        | {"mrope_section": (16, 24, 24), "is_mrope_interleaved": False},
    ),
    (QWEN3_5, OLD_PROCESSOR, {"min_pixels": 3136, "max_pixels": 12845056}),
    (
        IDEFICS3,
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        {"depth": 12, "intermediate_size": 3072, "norm_eps": 1e-6, "most_tiles": 17},
    ),
    (
        MISTRAL3,
        {"size": {"longest_edge": 1540}, "patch_size": {"height": 14, "width": 14}},
        {"depth": 24, "intermediate_size": 4096, "activation": "silu", "most_patches": 110**2},
    ),
]


def test_directories_with_and_without_a_processor_or_a_tower(tmp_path: Path) -> None:
    for config, processor, read in READ:
        vision = read_directory_config(saved(tmp_path, config, processor)).vision
        assert vision is not None
        assert {key: attrgetter(key)(vision) for key in read} == read
        found = image_layout(1920, 1080, vision)
        if config is IDEFICS3:
            assert (found.grid, found.rows, found.columns) == ((13, 32, 32), 3, 4)
            assert found.num_tokens(vision.merge) == 13 * 64
        elif config is MISTRAL3:
            assert (found.grid, found.num_runs) == ((1, 62, 110), 31)
    config = read_directory_config(saved(tmp_path, QWEN3_5, PROCESSOR))
    assert without_absent_tower(config, ["model.visual.merger.norm.weight"]) is config
    assert without_absent_tower(config, ["lm_head.weight"]).vision is None
    for facts in (
        PUBLISHED["qwen3.5-27b"],  # its tower is not described
        {key: QWEN3_5[key] for key in QWEN3_5 if key != "vision_config"},
        QWEN3_VL_8B,
    ):
        if facts is QWEN3_VL_8B:
            (tmp_path / "preprocessor_config.json").unlink()
        config = read_directory_config(saved(tmp_path, facts, None))
        assert config.vision is None
        assert not any("visual" in tensor.name for tensor in family_of(config).tensors(config))


WRONGLY_COMPUTED: dict[str, list[tuple[Facts, Facts, Facts, str]]] = {
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
    "llava": [({}, {"model_type": "clip_vision_model"}, {}, "'clip_vision_model', not 'pixtral'")],
    "qwen3_vl": [
        ({}, {"hidden_act": "relu"}, {}, "'relu' is not gelu"),
        ({}, {"num_position_embeddings": 2305}, {}, "no square"),
        ({}, {"out_hidden_size": 1024}, {}, "1024 numbers, and the decoder's 32"),
        ({}, {"num_heads": 7}, {}, "cannot be rotated"),
        *(
            ({}, {}, changes, r"preprocessor_config\.json")
            for changes in ({"patch_size": 14}, {"size": {}}, {"max_pixels": 10, "min_pixels": 99})
        ),
    ],
    "qwen2_5_vl": [
        ({}, {"hidden_act": "gelu"}, {}, "'gelu' is not supported"),
        ({}, {"window_size": 2}, {}, "hold no row"),
        ({}, {"fullatt_block_indexes": [3]}, {}, "of 3 see the whole image"),
    ],
}
"""By model: changes to config.json, to its vision_config and to preprocessor_config.json."""


@each_case(
    ("name", "outer", "vision", "processor", "reason"),
    [(name, *row) for name, rows in WRONGLY_COMPUTED.items() for row in rows],
    ids=str,
)
def test_what_would_be_computed_wrongly(
    name: str, outer: Facts, vision: Facts, processor: Facts, reason: str
) -> None:
    tiny = IMAGE_MODELS[name]
    config = tiny.make().config.to_dict() | outer
    config["vision_config"] = config["vision_config"] | vision
    with pytest.raises(BadFileError, match=reason):
        with_pixels(parse_config(config, {}), tiny.processor | processor)

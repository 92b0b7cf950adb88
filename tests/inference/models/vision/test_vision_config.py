"""Towers in config.json and preprocessor_config.json, and in mmproj files beside a GGUF text model:
what they declare, which are refused, and how loads, plans and checks of files find them."""

from __future__ import annotations

import json
import math
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.loading.described import DescribedModel, describe_model
from inference.loading.file_check import FileCheckOrder, check
from inference.loading.hub_config import parse_config, read_directory_config
from inference.loading.read_costs import read_costs
from inference.loading.sources.sources import path_files
from inference.loading.weights.named_files import without_absent_tower
from inference.models.families.registry import family_of
from inference.models.families.tower import with_pixels
from inference.models.vision_config import KEPT_ROWS_BYTES
from inference.protocol.images import image_layout
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
from tests.inference.models.families.test_configs import PUBLISHED, QWEN3_5
from tests.inference.models.vision.tiny_images import IMAGE_TOKEN
from tests.inference.models.vision.tiny_qwen import IMAGE_MODELS, QWEN3_VL

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


def write_configs(directory: Path, config: Facts, processor: Facts | None) -> Path:
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
        vision = read_directory_config(write_configs(tmp_path, config, processor)).vision
        assert {key: attrgetter(key)(vision) for key in read} == read
        found = image_layout(1920, 1080, vision)
        if config is IDEFICS3:
            assert (found.grid, found.rows, found.columns) == ((13, 32, 32), 3, 4)
            assert found.num_tokens(vision.merge) == 13 * 64
        elif config is MISTRAL3:
            assert (found.grid, found.num_runs) == ((1, 62, 110), 31)
    config = read_directory_config(write_configs(tmp_path, QWEN3_5, PROCESSOR))
    assert without_absent_tower(config, ["model.visual.merger.norm.weight"]) is config
    assert without_absent_tower(config, ["lm_head.weight"]).vision is None
    for facts in (
        PUBLISHED["qwen3.5-27b"],  # its tower is not described
        {key: QWEN3_5[key] for key in QWEN3_5 if key != "vision_config"},
        QWEN3_VL_8B,
    ):
        if facts is QWEN3_VL_8B:
            (tmp_path / "preprocessor_config.json").unlink()
        config = read_directory_config(write_configs(tmp_path, facts, None))
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


def described(path: Path, file: str | None = None) -> DescribedModel:
    found = describe_model(path_files(path, file, 2**30), "cpu")
    found.files.close()
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
    assert "model.visual.patch_embed.proj.weight" in found.files
    found = described(saved, "none")
    assert found.config.vision is None and found.projector is None
    assert not any(name.startswith("model.visual.") for name in found.files)
    (tmp_path / "alone.gguf").symlink_to(saved)
    assert described(tmp_path / "alone.gguf").config.vision is None
    assert described(tmp_path / "alone.gguf", str(mmproj)).config.vision is not None
    monkeypatch.setenv("HELEXA_VISION_MAX_PIXELS", "0")
    assert described(saved).config.vision is None


def test_what_a_file_or_a_vocabulary_leaves_out(tmp_path: Path) -> None:
    gemma3, idefics3 = IMAGE_MODELS["gemma3"], IMAGE_MODELS["idefics3"]
    unused = {120: "120", 99: "<unused7>", 101: "<unused8>"}
    vision = described(gemma3.save_gguf(tmp_path / "gemma3", tokens=unused)).config.vision
    assert vision.image_token_id == 101 and vision.text is not None
    assert vision.text.written == "\n\n<start_of_image><unused8><end_of_image>\n\n"
    changes = {"vision.preproc_image_size": None}
    vision = described(idefics3.save_gguf(tmp_path / "idefics3", **changes)).config.vision
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
    names = [name for name in opened.files if name.startswith("model.visual.")]
    num_weights = sum(math.prod(opened.files[name].shape) for name in names)
    assert with_it.cpu - without.cpu == 4 * num_weights + KEPT_ROWS_BYTES
    assert with_it.cuda - without.cuda == 2 * num_weights + KEPT_ROWS_BYTES
    assert opened.need.image_bytes == KEPT_ROWS_BYTES
    assert opened.projector == saved.parent / "mmproj-F32.gguf"


def test_a_tower_in_8_bits_becomes_dense(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "model-F32.gguf").symlink_to(saved)
    QWEN3_VL.save_mmproj(tmp_path / "mmproj-Q8_0.gguf", is_rounded=True)
    opened = conftest.opened(tmp_path / "model-F32.gguf", tmp_path, quantization="q8")
    name = "model.visual.merger.linear_fc1.weight"
    assert opened.files[name].format == "Q8_0"
    assert opened.files["model.layers.0.self_attn.q_proj.weight"].format == "q8"
    wanted = QWEN3_VL.make().state_dict()[name]
    torch.testing.assert_close(opened.weights.tensor(name), wanted, rtol=0.02, atol=0.02)
    opened.close()


OF_ANOTHER_MODEL: list[tuple[str, Facts, str]] = [
    ("gemma3", {"tokens": {120: "120"}}, "neither <image_soft_token> nor"),
    ("gemma3", {"projector_type": "qwen3vl_merger"}, "and gemma3 has 'gemma3'"),
    ("idefics3", {"tokens": {120: "120"}}, "vocabulary has no <image>"),
    ("idefics3", {"tokens": {121: "121"}}, "no <fake_token_around_image>"),
    ("idefics3", {"projector_type": "gemma3"}, "and llama has 'idefics3' or 'pixtral'"),
    ("mistral3", {"tokens": {120: "120"}}, r"vocabulary has no \[IMG\]"),
    ("mistral3", {"tokens": {121: "121"}}, r"no \[IMG_BREAK\]"),
    ("qwen3_vl", {"projector_type": "resampler"}, "which is not .* known: qwen2.5vl_merger"),
    ("qwen3_vl", {"projector_type": "qwen2.5vl_merger"}, "and qwen3vl has 'qwen3vl_merger'"),
    ("qwen3_vl", {"projector_type": None}, "projector is None"),
    ("qwen3_vl", {"architecture": "qwen3vl"}, "its architecture is 'qwen3vl'"),
    ("qwen3_vl", {"vision.projection_dim": 64}, "have 64 numbers, and the text model's 32"),
]


@each_case(("name", "changes", "reason"), OF_ANOTHER_MODEL, ids=str)
def test_a_file_of_another_model(name: str, changes: Facts, reason: str, tmp_path: Path) -> None:
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
def test_a_malformed_file(name: str, changes: Facts, reason: str, tmp_path: Path) -> None:
    path = IMAGE_MODELS[name].save_gguf(tmp_path, **changes)
    kind: type[LoadError] = MissingTensorError if reason == "blocks.3" else BadFileError
    with pytest.raises(kind, match=reason):
        described(path)

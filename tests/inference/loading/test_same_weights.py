"""A tiny model as safetensors and as GGUF opens to the same config and the same weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file

from inference.loading.config.checked_shapes import expected_tensors
from inference.loading.loader import OpenedModel, open_model
from inference.models.registry import build_model
from inference.models.weights.stored import GroupedWeight
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.cases import each_case
from tests.inference.loading.conftest import (
    edit_tensors,
    opened,
    save_directory,
    save_gguf,
    saved_gguf,
)


@each_case(
    ("model_type", "is_tied"),
    [("llama", False), ("llama", True), ("qwen2", False), ("qwen3", False)],
)
def test_gguf_and_safetensors_agree(tmp_path: Path, model_type: str, is_tied: bool) -> None:
    packed = opened(saved_gguf(tmp_path, model_type, tie_word_embeddings=is_tied), tmp_path)
    dense = opened(tmp_path / "hf", tmp_path)
    assert dense.config.tie_embeddings is is_tied

    for name in expected_tensors(dense.config):
        if not name.endswith("norm.weight") and name.endswith(".weight"):
            stem = name.removesuffix(".weight")
            ours, theirs = packed.weights.stored(stem), dense.weights.stored(stem)
            assert torch.equal(ours.weight, theirs.weight), name
            assert (ours.bias is None) == (theirs.bias is None)
        else:
            assert torch.equal(packed.weights.tensor(name), dense.weights.tensor(name)), name
    # GGUF has the epsilon in float32.
    assert packed.config.rms_norm_eps == pytest.approx(dense.config.rms_norm_eps)
    same_eps = dataclasses.replace(packed.config, rms_norm_eps=dense.config.rms_norm_eps)
    assert same_eps == dense.config
    assert packed.num_parameters == dense.num_parameters
    assert packed.weight_bytes == dense.weight_bytes == 4 * dense.num_parameters


def test_rotary_rows_are_put_back_in_quantised_form(tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.q_proj"
    file = saved_gguf(tmp_path, types={f"{name}.weight": Type.Q8_0})

    stored = opened(file, tmp_path).weights.stored(name)

    assert isinstance(stored, GroupedWeight)
    weight = load_file(tmp_path / "hf" / "model.safetensors")[f"{name}.weight"]
    # Half a step of each group's scale, which is its largest value / 127.
    assert torch.allclose(stored.dequantize(), weight, atol=0.01)


@each_case("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_files_come_in_the_activation_dtype(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    directory = save_directory(tmp_path / "hf", "llama")
    weights = {k: v.to(dtype) for k, v in load_file(directory / "model.safetensors").items()}
    edit_tensors(directory, weights)
    model = opened(directory, tmp_path, dtype="float32")
    norm, x = model.weights.tensor("model.norm.weight"), torch.randn(3, 64)
    assert norm.dtype == torch.float32 and torch.equal(norm, weights["model.norm.weight"].float())
    expected = x @ weights["lm_head.weight"].float().T
    assert torch.allclose(model.weights.linear("lm_head").decode(x), expected, atol=1e-5)


def test_sharded_safetensors(
    tiny_directory: Path, tiny_weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    (tiny_directory / "model.safetensors").unlink()
    names = sorted(tiny_weights)
    for index, part in enumerate((names[:5], names[5:]), start=1):
        shard = tiny_directory / f"model-{index:05d}-of-00002.safetensors"
        save_file({name: tiny_weights[name] for name in part}, shard)
    model = opened(tiny_directory, tmp_path)
    assert torch.equal(model.weights.stored("lm_head").weight, tiny_weights["lm_head.weight"])
    save_file(tiny_weights, shard)
    with pytest.raises(BadFileError, match="both hold"):
        opened(tiny_directory, tmp_path)


@each_case(("quantization", "detail"), [("auto", ""), ("q4", "quantising to q4")])
def test_progress_counts_the_tensors(
    tmp_path: Path, tiny_directory: Path, quantization: str, detail: str
) -> None:
    reported: list[LoadProgress] = []
    given: dict[str, Any] = {"devices": ["cpu"], "quantization": quantization}
    spec = LoadSpec(job_id="1", model="tiny", source=f"path:{tiny_directory}", **given)
    model = open_model(spec, tmp_path / "cache", reported.append)
    assert isinstance(model, OpenedModel)
    build_model(model.config, model.weights, 32)
    assert [p.stage for p in reported][:2] == [LoadStage.STARTING, LoadStage.PREFLIGHT]
    last = reported[-1]
    assert (last.stage, last.done, last.unit) == (LoadStage.WEIGHTS, last.total, "tensors")
    assert {p.detail for p in reported if p.stage is LoadStage.WEIGHTS} == {detail}
    model.close()


def test_mixed_formats_stay_packed_side_by_side(
    tiny_weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    layer = "model.layers.0.self_attn"
    formats = {"q": Type.Q4_1, "k": Type.Q4_0, "v": Type.Q8_0}
    types = {f"{layer}.{name}_proj.weight": type for name, type in formats.items()}
    model = opened(save_gguf(tmp_path / "x.gguf", tiny_weights, types=types), tmp_path)
    names = [f"{layer}.{name}" for name in ("q_proj", "k_proj", "v_proj")]

    fused = model.weights.linear(*names)
    query_and_key, value = (part.whole() for part in model.weights.stored_parts(*names))

    assert (fused.in_features, fused.out_features) == (64, 64 + 32 + 32)
    x = torch.randn(5, 64)
    expected = x @ torch.cat([query_and_key.dequantize(), value.dequantize()]).T
    assert torch.allclose(fused.decode(x), expected, atol=0.02 * expected.abs().max())
    assert "Q4_0 4-bit kernel" in model.weights.report()
    assert "Q8_0 kept in 8 bits (0.0 MB)" in model.weights.report()

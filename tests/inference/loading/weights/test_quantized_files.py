"""Quantising while loading: the format of each weight, and the refusals."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType as Type
from safetensors.torch import load_file

from inference.loading import loader
from inference.loading.config.hub_config import read_directory_config
from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.quantized_files import QuantizedFiles, check_quantization
from inference.models.layers import linear
from inference.models.layers.linear import QuantizedLinear
from inference.models.native.build import find_compiler
from inference.models.weights.stored import DenseWeight, GroupedWeight
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError, DoesNotFitError
from tests.cases import each_case
from tests.inference.loading.conftest import (
    edit_tensors,
    opened,
    save_directory,
    save_gguf,
    saved_gguf,
)


@each_case(
    ("bits", "group_bytes", "tied"), [(4, 20, False), (4, 20, True), (5, 22, False), (6, 26, True)]
)
def test_tables_take_eight_bits_and_projections_what_was_asked_for(
    tmp_path: Path, bits: int, group_bytes: int, tied: bool
) -> None:
    directory = save_directory(tmp_path / "hf", "llama", tie_word_embeddings=tied)
    dense = opened(directory, tmp_path)
    model = opened(directory, tmp_path, quantization=f"q{bits}")
    stored = model.weights.stored
    tables = ["model.embed_tokens"] if tied else ["model.embed_tokens", "lm_head"]
    assert [stored(name).bits for name in tables] == [8] * len(tables)
    heads = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]
    (fused,) = model.weights.stored_parts(*heads)
    assert isinstance(fused.sample, GroupedWeight) and fused.sample.bits == bits
    assert torch.equal(
        model.weights.tensor("model.norm.weight"), dense.weights.tensor("model.norm.weight")
    )
    table_weights = len(tables) * 64 * 64
    projections = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64)
    norms = (2 * 2 + 1) * 64
    assert (
        model.weight_bytes == table_weights * 34 // 32 + projections * group_bytes // 32 + norms * 4
    )
    assert f"3 x q{bits} kept in {bits} bits" in model.weights.report()


def test_what_fits_no_group_stays_dense_and_biases_come_along(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", "qwen2", intermediate_size=80)
    weights = opened(directory, tmp_path, quantization="q8").weights
    down, name = weights.stored("model.layers.0.mlp.down_proj"), "model.layers.1.self_attn.q_proj"
    assert isinstance(down, DenseWeight) and down.shape == (64, 80)
    stored = weights.stored(name)
    assert isinstance(stored, GroupedWeight) and stored.bias is not None
    assert torch.equal(stored.bias, load_file(directory / "model.safetensors")[f"{name}.bias"])
    assert weights.report() == "1 x F32 dense; 1 x q8 kept in 8 bits (0.0 MB)"


@each_case("type", [Type.F32, Type.F16, Type.BF16])
def test_dense_gguf_is_quantised_in_natural_order(tmp_path: Path, type: Type) -> None:
    name = "model.layers.1.self_attn.q_proj"
    file = saved_gguf(tmp_path, types={f"{name}.weight": type})
    stored = opened(file, tmp_path, quantization="q8").weights.stored(name)
    assert isinstance(stored, GroupedWeight)
    weight = load_file(tmp_path / "hf" / "model.safetensors")[f"{name}.weight"]
    assert torch.allclose(stored.dequantize(), weight, atol=0.01)


UP, DOWN = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
TABLE = "model.embed_tokens"


@each_case(
    ("quantization", "found"),
    [("q8", "Q4_1"), ("q4", "Q8_0"), ("q6", "Q4_1, Q8_0"), ("none", "Q4_1, Q8_0")],
)
def test_a_file_of_other_bits_is_refused(tmp_path: Path, quantization: str, found: str) -> None:
    file = saved_gguf(tmp_path, types={f"{UP}.weight": Type.Q4_1, f"{DOWN}.weight": Type.Q8_0})
    with pytest.raises(
        BadSourceError,
        match=f"quantization {quantization} needs dense weights, and these files hold {found}; "
        "set quantization auto",
    ):
        opened(file, tmp_path, quantization=quantization)


@each_case(
    ("quantization", "types", "report"),
    [
        (
            "q4",
            {UP: Type.Q4_0, TABLE: Type.Q8_0},
            "1 x Q4_0 kept in 4 bits (0.0 MB); 1 x Q8_0 kept in 8 bits; "
            "1 x q4 kept in 4 bits (0.0 MB)",
        ),
        *(
            (
                "q5",
                {UP: type},
                f"1 x {type.name} kept in 5 bits (0.0 MB); 1 x q5 kept in 5 bits (0.0 MB); "
                "1 x q8 kept in 8 bits",
            )
            for type in (Type.Q5_0, Type.Q5_1)
        ),
    ],
)
def test_what_has_the_wanted_bits_already_is_kept(
    tmp_path: Path, quantization: str, types: dict[str, Type], report: str
) -> None:
    file = saved_gguf(tmp_path, types={f"{name}.weight": type for name, type in types.items()})
    weights = opened(file, tmp_path, quantization=quantization).weights
    weights.stored(UP)
    weights.stored(DOWN)
    weights.embedding(TABLE)
    assert weights.report() == report


def test_what_is_not_to_be_quantised_is_left_alone(
    tiny_directory: Path, tiny_weights: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    types = {k: Type.Q8_0 for k, weight in tiny_weights.items() if weight.dim() == 2}
    file = save_gguf(tmp_path / "x.gguf", tiny_weights, types=types)
    for source, quantization in ((file, "q8"), (tiny_directory, "auto"), (tiny_directory, "none")):
        model = opened(source, tmp_path, quantization=quantization)
        assert model.unquantized is None
        assert isinstance(model.weights.stored("lm_head"), DenseWeight) == (source != file)


FP8 = {"quantization": "fp8"}
NO_FP8 = r"capability 8\.9 or more, which {} is not; use q8"
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


@each_case(
    ("asked", "device", "capability", "refusal"),
    [
        (FP8, CPU, None, NO_FP8.format("cpu")),
        (FP8, CUDA, (8, 0), NO_FP8.format("cuda:0")),
        (FP8, CUDA, (8, 9), None),
        # Float32 products on a card take dense weights.
        *(
            ({"quantization": bits, "dtype": "float32"}, device, (9, 0), refusal)
            for bits in ("q4", "q5", "q6", "q8")
            for device, refusal in ((CPU, None), (CUDA, f"{bits} and dtype float32 exclude each"))
        ),
    ],
)
def test_what_a_device_multiplies(
    tiny_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
    device: torch.device,
    capability: tuple[int, int] | None,
    refusal: str | None,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    files = SafetensorsFiles([tiny_directory / "model.safetensors"])
    spec = LoadSpec(job_id="1", model="m", source="path:/m", **asked)
    config = read_directory_config(tiny_directory)
    with nullcontext() if refusal is None else pytest.raises(BadSourceError, match=refusal):
        assert check_quantization(files, config, spec, device) == asked["quantization"]


def test_fp8_counts_a_byte_a_weight_and_leaves_tables_dense(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", "llama", intermediate_size=40)
    dense = SafetensorsFiles([directory / "model.safetensors"])
    files = QuantizedFiles(dense, read_directory_config(directory), "fp8", 1)
    layer = "model.layers.0"
    assert files.bytes_of(f"{layer}.self_attn.q_proj.weight") == 64 * 64
    assert files.format_of(f"{layer}.self_attn.q_proj.weight") == "fp8"
    for dense in ("lm_head.weight", "model.embed_tokens.weight", f"{layer}.mlp.down_proj.weight"):
        assert files.format_of(dense) == "F32"
    assert isinstance(files.stored(f"{layer}.self_attn.q_proj.weight"), DenseWeight)
    files.close()


def test_a_model_that_only_fits_quantised_loads_quantised(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {
        quantization: opened(tiny_directory, tmp_path, quantization=quantization).need
        for quantization in ("none", "q8", "q6", "q5", "q4")
    }
    sizes = [needs[quantization].weight_bytes for quantization in needs]
    if find_compiler() is None:  # torch's kernel takes five and six bits as eight
        del sizes[2:4]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)
    assert needs["q8"].weight_bytes < 0.32 * needs["none"].weight_bytes
    assert needs["q4"].weight_bytes < 0.22 * needs["none"].weight_bytes
    free_bytes = needs["q4"].required_bytes
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: free_bytes)
    opened(tiny_directory, tmp_path, quantization="q4")
    with pytest.raises(DoesNotFitError):
        opened(tiny_directory, tmp_path, quantization="q8")


def test_an_output_head_has_no_copy_for_prompts(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "has_fast_bfloat16", lambda device: True)
    weights = opened(tiny_directory, tmp_path, quantization="q8").weights
    up, head = weights.linear("model.layers.0.mlp.up_proj"), weights.linear("lm_head")
    if not (isinstance(up, QuantizedLinear) and isinstance(head, QuantizedLinear)):
        pytest.skip(weights.report())
    assert up.prefill_weight is not None and head.prefill_weight is None


def test_values_that_no_group_holds_are_named(tiny_directory: Path, tmp_path: Path) -> None:
    head = torch.zeros(64, 64)
    head[5, 5] = float("nan")
    edit_tensors(tiny_directory, {"lm_head.weight": head})
    model = opened(tiny_directory, tmp_path, quantization="q8")
    with pytest.raises(BadFileError, match=r"lm_head\.weight cannot be quantised: .* none"):
        model.weights.stored("lm_head")

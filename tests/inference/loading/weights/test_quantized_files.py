"""Quantising while loading: the format of each weight, and the refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from inference.loading import loader
from inference.loading.config.hub_config import read_directory_config
from inference.loading.embedding import embedding_loader
from inference.loading.loader import open_model
from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.quantized_files import QuantizedFiles, check_quantization
from inference.models.layers import linear
from inference.models.layers.linear import QuantizedLinear
from inference.models.native.build import find_compiler
from inference.models.registry import build_model
from inference.models.weights.stored import DenseWeight, GroupedWeight
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError, DoesNotFitError
from inference.protocol.load_progress import LoadProgress, LoadStage
from tests.cases import each_case
from tests.inference.loading.conftest import opened, save_directory, save_gguf


@each_case(("bits", "group_bytes"), [(4, 20), (5, 22), (6, 26)])
@each_case("tied", [False, True])
def test_tables_take_eight_bits_and_projections_what_was_asked_for(
    tmp_path: Path, tied: bool, bits: int, group_bytes: int
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


def test_rows_that_are_no_multiple_of_32_stay_dense(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", "llama", intermediate_size=80)
    weights = opened(directory, tmp_path, quantization="q8").weights
    down = weights.stored("model.layers.0.mlp.down_proj")
    assert isinstance(down, DenseWeight) and down.shape == (64, 80)
    assert isinstance(weights.stored("model.layers.0.mlp.up_proj"), GroupedWeight)
    assert weights.report() == "1 x F32 dense; 1 x q8 kept in 8 bits (0.0 MB)"


def test_biases_come_along(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", "qwen2")
    name = "model.layers.1.self_attn.q_proj"
    stored = opened(directory, tmp_path, quantization="q8").weights.stored(name)
    assert isinstance(stored, GroupedWeight) and stored.bias is not None
    assert torch.equal(stored.bias, load_file(directory / "model.safetensors")[f"{name}.bias"])


@each_case("type", ["F32", "F16", "BF16"])
def test_dense_gguf_is_quantised_in_natural_order(tmp_path: Path, type: str) -> None:
    directory = save_directory(tmp_path / "hf", "llama")
    weights = load_file(directory / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj"
    types = {f"{name}.weight": GGMLQuantizationType[type]}
    file = save_gguf(tmp_path / "x.gguf", weights, types=types)
    stored = opened(file, tmp_path, quantization="q8").weights.stored(name)
    assert isinstance(stored, GroupedWeight)
    assert torch.allclose(stored.dequantize(), weights[f"{name}.weight"], atol=0.01)


def mixed_gguf(tmp_path: Path, **types: GGMLQuantizationType) -> Path:
    weights = load_file(save_directory(tmp_path / "hf", "llama") / "model.safetensors")
    names = {
        "table": "model.embed_tokens.weight",
        "up": "model.layers.0.mlp.up_proj.weight",
        "down": "model.layers.0.mlp.down_proj.weight",
    }
    by_name = {names[key]: type for key, type in types.items()}
    return save_gguf(tmp_path / "x.gguf", weights, types=by_name)


@each_case(
    ("quantization", "found"),
    [("q8", "Q4_1"), ("q4", "Q8_0"), ("q6", "Q4_1, Q8_0"), ("none", "Q4_1, Q8_0")],
)
def test_a_file_of_other_bits_is_refused(tmp_path: Path, quantization: str, found: str) -> None:
    file = mixed_gguf(tmp_path, up=GGMLQuantizationType.Q4_1, down=GGMLQuantizationType.Q8_0)
    with pytest.raises(
        BadSourceError,
        match=f"quantization {quantization} needs dense weights, and these files hold {found}; "
        "set quantization auto",
    ):
        opened(file, tmp_path, quantization=quantization)


def test_what_has_the_wanted_bits_already_is_kept(tmp_path: Path) -> None:
    file = mixed_gguf(tmp_path, up=GGMLQuantizationType.Q4_0, table=GGMLQuantizationType.Q8_0)
    weights = opened(file, tmp_path, quantization="q4").weights
    weights.stored("model.layers.0.mlp.up_proj")
    weights.stored("model.layers.0.mlp.down_proj")
    weights.embedding("model.embed_tokens")
    assert weights.report() == (
        "1 x Q4_0 kept in 4 bits (0.0 MB); 1 x Q8_0 kept in 8 bits; 1 x q4 kept in 4 bits (0.0 MB)"
    )


@each_case(("quantization", "has"), [("q5", "Q5_0"), ("q5", "Q5_1")])
def test_five_bits_of_a_file_are_kept(tmp_path: Path, quantization: str, has: str) -> None:
    file = mixed_gguf(tmp_path, up=GGMLQuantizationType[has])
    weights = opened(file, tmp_path, quantization=quantization).weights
    weights.stored("model.layers.0.mlp.up_proj")
    weights.stored("model.layers.0.mlp.down_proj")
    kept = f"1 x {has} kept in 5 bits (0.0 MB); 1 x q5 kept in 5 bits (0.0 MB)"
    assert weights.report() == kept


def test_a_file_that_is_what_was_asked_for_is_left_alone(tmp_path: Path) -> None:
    weights = load_file(save_directory(tmp_path / "hf", "llama") / "model.safetensors")
    types = {k: GGMLQuantizationType.Q8_0 for k, weight in weights.items() if weight.dim() == 2}
    model = opened(
        save_gguf(tmp_path / "x.gguf", weights, types=types), tmp_path, quantization="q8"
    )
    assert model.unquantized is None


@each_case("quantization", ["auto", "none"])
def test_dense_files_stay_dense_unless_asked(tiny_directory, tmp_path, quantization: str) -> None:
    model = opened(tiny_directory, tmp_path, quantization=quantization)
    assert isinstance(model.weights.stored("lm_head"), DenseWeight)
    assert model.unquantized is None


def test_fp8_is_refused_on_a_cpu(tiny_directory: Path, tmp_path: Path) -> None:
    with pytest.raises(BadSourceError, match=r"capability 8\.9 or more, which cpu is not; use q8"):
        opened(tiny_directory, tmp_path, quantization="fp8")


@each_case(("capability", "is_refused"), [((8, 0), True), ((8, 9), False)])
def test_fp8_is_for_cards_that_have_it(
    tiny_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    is_refused: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    files, card = SafetensorsFiles([tiny_directory / "model.safetensors"]), torch.device("cuda:0")
    spec = LoadSpec(job_id="1", model="m", source="path:/m", quantization="fp8")
    if is_refused:
        with pytest.raises(BadSourceError, match="which cuda:0 is not"):
            check_quantization(files, read_directory_config(tiny_directory), spec, card)
    else:
        assert check_quantization(files, read_directory_config(tiny_directory), spec, card) == "fp8"


@each_case("quantization", ["q4", "q5", "q6", "q8"])
def test_float32_products_on_a_card_take_dense_weights(
    tiny_directory: Path, quantization: str
) -> None:
    files = SafetensorsFiles([tiny_directory / "model.safetensors"])
    spec = LoadSpec(
        job_id="1", model="m", source="path:/m", dtype="float32", quantization=quantization
    )
    with pytest.raises(BadSourceError, match=f"{quantization} and dtype float32 exclude each"):
        check_quantization(
            files, read_directory_config(tiny_directory), spec, torch.device("cuda:0")
        )
    assert (
        check_quantization(files, read_directory_config(tiny_directory), spec, torch.device("cpu"))
        == quantization
    )


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


def test_a_model_of_embeddings_is_not_quantised() -> None:
    spec = LoadSpec(job_id="1", model="m", source="path:/m", quantization="q8")
    with pytest.raises(BadSourceError, match="q8 is not built for a model that makes embeddings"):
        embedding_loader.refuse_settings_of_text(spec)


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
    path = tiny_directory / "model.safetensors"
    weights = load_file(path)
    weights["lm_head.weight"][5, 5] = float("nan")
    save_file(weights, path)
    model = opened(tiny_directory, tmp_path, quantization="q8")
    with pytest.raises(BadFileError, match=r"lm_head\.weight cannot be quantised: .* none"):
        model.weights.stored("lm_head")


def test_progress_reports_what_is_done(tiny_directory: Path, tmp_path: Path) -> None:
    reported: list[LoadProgress] = []
    spec = LoadSpec(
        job_id="1",
        model="tiny",
        source=f"path:{tiny_directory}",
        devices=["cpu"],
        quantization="q4",
    )
    model = open_model(spec, tmp_path / "cache", reported.append)
    build_model(model.config, model.weights, 32)
    weights = [p for p in reported if p.stage is LoadStage.WEIGHTS]
    assert {p.detail for p in weights} == {"quantising to q4"}
    assert (weights[-1].done, weights[-1].unit) == (weights[-1].total, "tensors")
    model.close()

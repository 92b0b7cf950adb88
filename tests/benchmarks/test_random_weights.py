"""Files and folders of random weights are whole models: they open, and keep their formats."""

from __future__ import annotations

from pathlib import Path

from benchmarks.weights import random_folder
from benchmarks.weights.random_gguf import file_bytes, write
from benchmarks.weights.shapes import SHAPES, DenseShape, HybridShape, MixtureShape
from inference.loading.config.checked_shapes import check_tensors
from inference.loading.config.hub_config import read_directory_config
from inference.loading.loader import OpenedModel, open_model
from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.sources.sources import directory_files
from inference.models.families.registry import family_of
from inference.models.weights.stored import DenseWeight
from inference.protocol.load import LoadSpec
from tests.cases import each_case

SHAPE = MixtureShape(
    vocab_size=256,
    hidden_size=256,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    num_experts=3,
    experts_per_token=2,
    expert_size=256,
)


def opened(shape: DenseShape | HybridShape | MixtureShape, folder: Path) -> OpenedModel:
    write(shape, folder / "x.gguf")
    spec = LoadSpec(job_id="1", model="x", source=f"path:{folder / 'x.gguf'}", devices=["cpu"])
    model = open_model(spec, folder / "cache", lambda progress: None)
    assert isinstance(model, OpenedModel)
    return model


def test_a_mixture_of_random_weights_is_a_model(tmp_path: Path) -> None:
    model = opened(SHAPE, tmp_path)
    experts = model.config.experts
    assert experts is not None and experts.normalizes
    assert (experts.num_experts, experts.experts_per_token, experts.intermediate_size) == (
        3,
        2,
        256,
    )
    prefix = "model.layers.0.mlp.experts.2"
    for name, bits in (("gate_proj", 4), ("down_proj", 6)):
        stored = model.weights.stored(f"{prefix}.{name}")
        assert not isinstance(stored, DenseWeight) and stored.bits == bits
        assert 0.02 < float(stored.dequantize().square().mean().sqrt()) < 0.04
    model.close()


HYBRID = SHAPES["tiny-hybrid"]
assert isinstance(HYBRID, HybridShape)


def test_a_hybrid_of_random_weights_is_a_model(tmp_path: Path) -> None:
    model = opened(HYBRID, tmp_path)
    config = model.config
    assert config.mixers == ("delta", "delta", "delta", "attention") and config.rotary_dim == 64
    assert config.delta is not None and config.delta.conv_channels == 3 * 2 * 128
    assert all(model.weights.has(tensor.name) for tensor in family_of(config).tensors(config))
    stored = model.weights.stored("model.layers.0.linear_attn.in_proj_qkv")
    assert not isinstance(stored, DenseWeight) and stored.bits == 4
    model.close()


def test_a_dense_file_of_random_weights_is_a_model(tmp_path: Path) -> None:
    dense = SHAPES["tiny-dense"]
    assert isinstance(dense, DenseShape)
    model = opened(dense, tmp_path)
    assert file_bytes(dense) <= (tmp_path / "x.gguf").stat().st_size < file_bytes(dense) + 10**6
    assert (model.config.intermediate_size, model.config.qk_norm) == (512, True)
    stored = model.weights.stored("model.layers.0.mlp.gate_proj")
    assert not isinstance(stored, DenseWeight) and stored.bits == 4
    model.close()


@each_case("is_fp8", [False, True])
def test_a_folder_of_random_weights_is_a_model(tmp_path: Path, is_fp8: bool) -> None:
    """In fp8 a scale for each block comes with each projection."""
    shape = SHAPES["tiny-dense"]
    assert isinstance(shape, DenseShape)
    folder = tmp_path / "tiny-dense"
    random_folder.write(shape, folder, "cpu", is_fp8=is_fp8)
    if not is_fp8:
        files = SafetensorsFiles(directory_files(folder, None, free_bytes=0).weights)
        check_tensors(read_directory_config(folder), files)
    written_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    counted_bytes = random_folder.folder_bytes("tiny-dense", is_fp8=is_fp8)
    assert counted_bytes <= written_bytes < counted_bytes + 10**5
    spec = LoadSpec(job_id="1", model="x", source=f"path:{folder}", devices=["cpu"])
    model = open_model(spec, tmp_path / "cache", lambda progress: None)
    assert isinstance(model, OpenedModel)
    read = model.weights.stored("model.layers.1.mlp.gate_proj")
    assert isinstance(read, DenseWeight)
    assert read.weight.shape == (shape.inner_size, shape.hidden_size)
    assert 0.01 < float(read.weight.float().square().mean().sqrt()) < 0.03
    model.close()

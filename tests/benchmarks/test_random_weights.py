"""Files and folders of random weights are whole models: they open, and keep their formats."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

from benchmarks import random_folder
from benchmarks.gguf_files import file_bytes, write
from benchmarks.shapes import SHAPES, DenseShape, HybridShape
from inference.loading.described import check_tensors
from inference.loading.hub_config import read_directory_config
from inference.loading.loader import open_model
from inference.loading.sources.sources import directory_files
from inference.loading.weights.tensor_files import SafetensorsFiles
from inference.models.families.registry import family_of
from inference.models.stored_weights import DenseWeight
from tests.cases import each_case
from tests.inference.engine.conftest import cpu_spec


def opened(source: Path, folder: Path) -> Any:
    return open_model(cpu_spec(source), folder / "cache", lambda progress: None)


@each_case(
    ("shape", "config", "bits"),
    [
        (
            SHAPES["tiny-mixture"],
            {"experts.num_experts": 8, "experts.experts_per_token": 2}
            | {"experts.intermediate_size": 256, "experts.normalizes": True},
            {"mlp.experts.2.gate_proj": 4, "mlp.experts.2.down_proj": 6},
        ),
        (
            SHAPES["tiny-hybrid"],
            {"mixers": ("delta", "delta", "delta", "attention"), "rotary_dim": 64}
            | {"delta.conv_channels": 3 * 2 * 128},
            {"linear_attn.in_proj_qkv": 4},
        ),
        (SHAPES["tiny-dense"], {"intermediate_size": 512, "qk_norm": True}, {"mlp.gate_proj": 4}),
    ],
    ids=["mixture", "hybrid", "dense"],
)
def test_a_file_of_random_weights_is_a_model(
    tmp_path: Path, shape: Any, config: dict[str, Any], bits: dict[str, int]
) -> None:
    file = tmp_path / "x.gguf"
    write(shape, file)
    if isinstance(shape, DenseShape):
        assert file_bytes(shape) <= file.stat().st_size < file_bytes(shape) + 10**6
    model = opened(file, tmp_path)
    assert {name: attrgetter(name)(model.config) for name in config} == config
    if isinstance(shape, HybridShape):
        tensors = family_of(model.config).tensors(model.config)
        assert all(model.weights.has(tensor.name) for tensor in tensors)
    for name, num_bits in bits.items():
        stored = model.weights.stored(f"model.layers.0.{name}")
        assert not isinstance(stored, DenseWeight) and stored.bits == num_bits
        assert 0.01 < float(stored.dequantize().square().mean().sqrt()) < 0.05
    model.close()


@each_case("is_fp8", [False, True])
def test_a_folder_of_random_weights_is_a_model(tmp_path: Path, is_fp8: bool) -> None:
    """In fp8 a scale for each block comes with each projection."""
    shape = SHAPES["tiny-dense"]
    folder = tmp_path / "tiny-dense"
    random_folder.write("tiny-dense", folder, "cpu", is_fp8=is_fp8)
    if not is_fp8:
        files = SafetensorsFiles(directory_files(folder, None, free_bytes=0).weights)
        check_tensors(read_directory_config(folder), files)
    written_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    counted_bytes = random_folder.folder_bytes("tiny-dense", is_fp8=is_fp8)
    assert counted_bytes <= written_bytes < counted_bytes + 10**5
    model = opened(folder, tmp_path)
    read = model.weights.stored("model.layers.1.mlp.gate_proj")
    assert read.weight.shape == (shape.inner_size, shape.hidden_size)
    assert 0.01 < float(read.weight.float().square().mean().sqrt()) < 0.03
    model.close()

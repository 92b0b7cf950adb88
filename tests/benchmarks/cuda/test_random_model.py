"""A folder made on the spot is one that a load takes for a model of that shape."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cuda import random_model
from benchmarks.cuda.random_model import (
    SHAPES,
    TINY,
    NoRoomError,
    check_disk,
    folder_bytes,
    hub_config,
    is_made,
    make_folder,
    shards,
)
from inference.loading.config.checked_shapes import check_tensors
from inference.loading.config.hub_config import read_directory_config
from inference.loading.loader import OpenedModel, open_model
from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.sources.sources import directory_files
from inference.models.weights.stored import DenseWeight
from inference.protocol.load import LoadSpec
from tests.cases import each_case


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the folder of a model in several shards."""
    monkeypatch.setattr(random_model, "SHARD_BYTES", 100_000)
    make_folder(TINY, tmp_path / "tiny", "cpu")
    return tmp_path / "tiny"


def test_a_load_finds_the_whole_model_in_its_shards(folder: Path) -> None:
    paths = directory_files(folder, None, free_bytes=0).weights
    assert len(paths) > 1
    files = SafetensorsFiles(paths)
    check_tensors(read_directory_config(folder), files)
    held_bytes = sum(files.bytes_of(name) for name in files.names)
    norm_bytes = sum(files.bytes_of(name) for name in files.names if "norm" in name)
    assert held_bytes - norm_bytes == folder_bytes(TINY)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(files.names)
    assert set(index["weight_map"].values()) == {path.name for path in paths}


@each_case("config", [TINY, *SHAPES.values()])
def test_its_config_is_read_as_the_shape(config: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hub_config(config)))  # type: ignore[arg-type]
    assert read_directory_config(tmp_path) == config


def test_it_is_made_again_only_where_it_is_not_whole_or_of_another_shape(folder: Path) -> None:
    assert is_made(TINY, folder)
    assert not is_made(replace(TINY, num_layers=3), folder)
    (folder / "config.json").unlink()
    assert not is_made(TINY, folder)


def test_shards_keep_the_order_and_the_limit() -> None:
    sizes = {"a": 5, "b": 4, "c": 20, "d": 1, "e": 9}
    assert shards(sizes, 10) == [["a", "b"], ["c"], ["d", "e"]]


def test_a_full_disk_is_reported_before_anything_is_written() -> None:
    check_disk("8B", 16 * 10**9, Path("var"), free_bytes=17 * 10**9)
    with pytest.raises(NoRoomError, match=r"8B need 16\.0 GB under var, and 16\.5 GB are free"):
        check_disk("8B", 16 * 10**9, Path("var"), free_bytes=16_500_000_000)


def test_projections_may_be_in_fp8_with_a_scale_for_each_block(tmp_path: Path) -> None:
    make_folder(TINY, tmp_path / "fp8", "cpu", is_fp8=True)
    spec = LoadSpec(job_id="1", model="x", source=f"path:{tmp_path / 'fp8'}", devices=["cpu"])
    model = open_model(spec, tmp_path / "cache", lambda progress: None)
    assert isinstance(model, OpenedModel)
    read = model.weights.stored("model.layers.0.mlp.gate_proj")
    assert isinstance(read, DenseWeight)
    assert read.weight.shape == (TINY.intermediate_size, TINY.hidden_size)
    assert 0.01 < float(read.weight.float().square().mean().sqrt()) < 0.03
    model.close()

"""A tiny model opens to the same weights however files hold them: in shards and stacks, whole and a
rank's part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from inference.engine.divided.ranked_model import follower_spec
from inference.engine.divided.stage_specs import check_divided
from inference.loading.loader import OpenedModel, open_model
from inference.loading.weights.named_files import by_expert
from inference.loading.weights.tensor_files import SafetensorsFiles
from inference.models.registry import build_model
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError, MissingTensorError
from inference.protocol.load_report import LoadProgress, LoadStage
from tests.inference.loading.conftest import opened, saved_gguf

LAYER = "model.layers.1"
QUERIES, DOWN = f"{LAYER}.self_attn.q_proj", f"{LAYER}.mlp.down_proj"


def test_sharded_safetensors_and_the_progress_of_their_tensors(
    tiny_directory: Path, tmp_path: Path
) -> None:
    whole = tiny_directory / "model.safetensors"
    weights = load_file(whole)
    whole.unlink()
    names = sorted(weights)
    for index, part in enumerate((names[:5], names[5:]), start=1):
        shard = tiny_directory / f"model-{index:05d}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, shard)
    reported: list[LoadProgress] = []
    spec = LoadSpec(job_id="1", model="tiny", source=f"path:{tiny_directory}", devices=["cpu"])
    model = open_model(spec, tmp_path / "cache", reported.append)
    assert isinstance(model, OpenedModel)
    assert torch.equal(model.weights.stored("lm_head").weight, weights["lm_head.weight"])
    build_model(model.config, model.weights, 32)
    assert [one.stage for one in reported][:2] == [LoadStage.STARTING, LoadStage.PREFLIGHT]
    last = reported[-1]
    assert (last.stage, last.done, last.unit) == (LoadStage.WEIGHTS, last.total, "tensors")
    model.close()
    save_file(weights, shard)
    with pytest.raises(BadFileError, match="both hold"):
        opened(tiny_directory, tmp_path)


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> SafetensorsFiles:
    save_file(tensors, folder / "model.safetensors")
    return SafetensorsFiles([folder / "model.safetensors"])


def test_stacks_are_cut_where_they_lie(tmp_path: Path) -> None:
    experts = f"{LAYER}.mlp.experts"
    gate_up, down = torch.randn(3, 2 * 32, 64), torch.randn(3, 64, 32)
    stacked = {f"{experts}.gate_up_proj": gate_up, f"{experts}.down_proj": down}
    stacked |= {f"{LAYER}.mlp.gate.weight": torch.randn(3, 64)}
    files = by_expert(saved(tmp_path, stacked))
    assert torch.equal(files[f"{experts}.2.gate_proj.weight"].dense(), gate_up[2, :32])
    assert torch.equal(files[f"{experts}.2.up_proj.weight"].dense(), gate_up[2, 32:])
    assert torch.equal(files[f"{experts}.2.down_proj.weight"].dense(), down[2])
    assert files[f"{experts}.2.down_proj.weight"].shape == (64, 32)
    assert len(files) == 1 + 3 * 3
    num_bytes = sum(files[name].num_bytes for name in files)
    assert num_bytes == sum(tensor.nbytes for tensor in stacked.values())
    with pytest.raises(MissingTensorError):
        files[f"{experts}.3.down_proj.weight"].dense()
    files.close()
    dense = saved(tmp_path, {f"{experts}.0.up_proj.weight": torch.randn(32, 64)})
    assert by_expert(dense) is dense
    dense.close()


TWO = {"devices": ["cpu"], "tensor_parallel": 2, "dtype": "float32", "kv_dtype": "fp32"}
ALONE = TWO | {"tensor_parallel": 1}


def part_spec(source: Path, **changes: Any) -> LoadSpec:
    return LoadSpec(job_id="1", model="m", source=f"path:{source}", **TWO | changes)


def test_each_rank_reads_its_rows_and_columns(tmp_path: Path) -> None:
    """Packed ones where their groups end: of 96 inputs two groups and one."""
    kinds = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0
    types = dict(zip((f"{QUERIES}.weight", f"{DOWN}.weight"), kinds, strict=True))
    path = saved_gguf(tmp_path, types=types)
    whole = opened(path, tmp_path, **ALONE)
    parts = [opened(path, tmp_path, rank=rank, **TWO) for rank in (0, 1)]
    assert [part.weights.stored(DOWN).shape for part in parts] == [(64, 64), (64, 32)]
    for name, axis in ((QUERIES, 0), (DOWN, 1)):
        found = torch.cat([part.weights.stored(name).dequantize() for part in parts], dim=axis)
        assert torch.equal(found, whole.weights.stored(name).dequantize())
    values = [part.weights.stored(f"{LAYER}.self_attn.v_proj").weight for part in parts]
    assert torch.equal(torch.cat(values), whole.weights.stored(f"{LAYER}.self_attn.v_proj").weight)
    norm = "model.norm.weight"
    assert torch.equal(parts[1].weights.tensor(norm), whole.weights.tensor(norm))
    for part in parts:
        assert part.num_parameters == whole.num_parameters
        assert part.need.kv_bytes == whole.need.kv_bytes // 2
    follower = follower_spec(part_spec(path, revision="main", sha256="0" * 64), parts[0])
    assert follower.source == f"path:{path}", "others load what the first has chosen"
    assert follower.revision is None and follower.sha256 is None
    dense = [opened(tmp_path / "hf", tmp_path, **one) for one in (ALONE, TWO)]
    share = dense[1].need.weight_bytes / dense[0].need.weight_bytes
    assert 0.5 <= share < 0.52, "norms are whole"
    for model in (whole, *parts, *dense):
        model.close()


def test_what_cannot_be_shared_is_refused_by_name(tiny_directory: Path, tmp_path: Path) -> None:
    for changes, message in (
        ({"tensor_parallel": 3}, "3 ranks cannot share 4 attention heads evenly"),
        ({"devices": ["cpu", "cpu"], "tensor_parallel": 4}, "set tensor_parallel to 2"),
    ):
        with pytest.raises(BadSourceError, match=message):
            opened(tiny_directory, tmp_path, **TWO | changes)
    for changes, message in (
        ({"prefix_disk_bytes": 1}, "prefix_disk_bytes is not built"),
        ({"speculation": "draft_model"}, "speculation draft_model is not built"),
    ):
        check_divided(part_spec(Path("/m"), tensor_parallel=1, **changes))
        with pytest.raises(BadSourceError, match=message):
            check_divided(part_spec(Path("/m"), **changes))

"""A rank's part of a model on disk: the bytes that it reads, its memory estimate, and refusals
before any weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType

from inference.engine.ranks.lead import follower_spec
from inference.engine.stages.stage_specs import check_divided
from inference.loading.loader import OpenedModel, open_model
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadSourceError
from tests.cases import each_case
from tests.inference.loading.conftest import saved_gguf

QUERIES = "model.layers.1.self_attn.q_proj"
DOWN = "model.layers.1.mlp.down_proj"


def spec(source: Path, **changes: Any) -> LoadSpec:
    own = {"devices": ["cpu"], "tensor_parallel": 2, "dtype": "float32", "kv_dtype": "fp32"}
    return LoadSpec(job_id="1", model="m", source=f"path:{source}", **own | changes)


def opened(source: Path, folder: Path, rank: int = 0, **changes: Any) -> OpenedModel:
    found = open_model(spec(source, **changes), folder, lambda _: None, rank=rank)
    assert isinstance(found, OpenedModel)
    return found


def test_each_rank_reads_its_rows_and_columns(tiny_directory: Path, tmp_path: Path) -> None:
    whole = opened(tiny_directory, tmp_path, tensor_parallel=1)
    parts = [opened(tiny_directory, tmp_path, rank) for rank in (0, 1)]
    queries = [part.weights.stored(QUERIES).weight for part in parts]
    assert torch.equal(torch.cat(queries), whole.weights.stored(QUERIES).weight)
    down = [part.weights.stored(DOWN).weight for part in parts]
    assert torch.equal(torch.cat(down, dim=1), whole.weights.stored(DOWN).weight)
    norm = "model.norm.weight"
    assert torch.equal(parts[1].weights.tensor(norm), whole.weights.tensor(norm))
    for part in parts:
        assert part.num_parameters == whole.num_parameters
        assert 0.5 <= part.need.weight_bytes / whole.need.weight_bytes < 0.52, "norms are whole"
        assert part.need.kv_bytes == whole.need.kv_bytes // 2
    for model in (whole, *parts):
        model.close()


def test_packed_weights_are_cut_where_their_groups_end(tmp_path: Path) -> None:
    """32 of the 64 outputs; of 96 inputs two groups and one."""
    types = {
        f"{QUERIES}.weight": GGMLQuantizationType.Q4_1,
        f"{DOWN}.weight": GGMLQuantizationType.Q8_0,
    }
    path = saved_gguf(tmp_path, types=types)
    whole = opened(path, tmp_path, tensor_parallel=1).weights
    parts = [opened(path, tmp_path, rank).weights for rank in (0, 1)]
    assert [part.stored(DOWN).shape for part in parts] == [(64, 64), (64, 32)]
    for name, axis in ((QUERIES, 0), (DOWN, 1)):
        found = torch.cat([part.stored(name).dequantize() for part in parts], dim=axis)
        assert torch.equal(found, whole.stored(name).dequantize())


@each_case(
    ("changes", "message"),
    [
        ({"tensor_parallel": 3}, "3 ranks cannot share 4 attention heads evenly"),
        ({"devices": ["cpu", "cpu"], "tensor_parallel": 4}, "set tensor_parallel to 2"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(
    tiny_directory: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadSourceError, match=message):
        opened(tiny_directory, tmp_path, **changes)


@each_case(
    ("changes", "message"),
    [
        ({"prefix_disk_bytes": 1}, "prefix_disk_bytes is not built"),
        ({"speculation": "draft_model"}, "speculation draft_model is not built"),
    ],
)
def test_what_ranks_do_not_do_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadSourceError, match=message):
        check_divided(spec(Path("/m"), **changes))
    check_divided(spec(Path("/m"), tensor_parallel=1, **changes))


def test_other_ranks_load_what_the_first_has_chosen(tiny_directory: Path, tmp_path: Path) -> None:
    chosen = spec(tiny_directory, revision="main", sha256="0" * 64)
    model = opened(tiny_directory, tmp_path)
    follower = follower_spec(chosen, model)
    assert follower.source == f"path:{tiny_directory}"
    assert follower.revision is None and follower.sha256 is None
    model.close()

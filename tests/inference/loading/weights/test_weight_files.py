"""A tiny model opens to the same weights however files hold them: as safetensors and as GGUF, in
shards and stacks, whole and a rank's part."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import save_file

from inference.engine.divided.ranked_model import follower_spec
from inference.engine.divided.stage_specs import check_divided
from inference.loading.loader import OpenedModel, open_model
from inference.loading.weights.named_files import by_expert
from inference.loading.weights.tensor_files import SafetensorsFiles
from inference.models.families.registry import check_architecture, family_of
from inference.models.registry import build_model
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError, MissingTensorError
from inference.protocol.load_report import LoadProgress, LoadStage
from tests.cases import each_case
from tests.inference.loading.conftest import opened, saved_gguf


@each_case(
    ("model_type", "is_tied"),
    [("llama", False), ("llama", True), ("qwen2", False), ("qwen3", False)],
)
def test_gguf_and_safetensors_agree(tmp_path: Path, model_type: str, is_tied: bool) -> None:
    packed = opened(saved_gguf(tmp_path, model_type, tie_word_embeddings=is_tied), tmp_path)
    dense = opened(tmp_path / "hf", tmp_path)
    assert dense.config.tie_embeddings is is_tied

    for name in (one.name for one in family_of(dense.config).tensors(dense.config)):
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


def test_progress_counts_the_tensors(tmp_path: Path, tiny_directory: Path) -> None:
    for quantization, detail in (("auto", ""), ("q4", "quantising to q4")):
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


NUM_EXPERTS, INNER, HIDDEN = 3, 32, 64
LAYER = "model.layers.1"


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> SafetensorsFiles:
    save_file(tensors, folder / "model.safetensors")
    return SafetensorsFiles([folder / "model.safetensors"])


def test_stacks_are_cut_where_they_lie(tmp_path: Path) -> None:
    stacked = {
        f"{LAYER}.input_layernorm.weight": torch.randn(HIDDEN),
        f"{LAYER}.mlp.gate.weight": torch.randn(NUM_EXPERTS, HIDDEN),
        f"{LAYER}.mlp.experts.gate_up_proj": torch.randn(NUM_EXPERTS, 2 * INNER, HIDDEN),
        f"{LAYER}.mlp.experts.down_proj": torch.randn(NUM_EXPERTS, HIDDEN, INNER),
    }
    files = by_expert(saved(tmp_path, stacked))
    gate_up = stacked[f"{LAYER}.mlp.experts.gate_up_proj"]
    expert = f"{LAYER}.mlp.experts.2"
    assert torch.equal(files.dense(f"{expert}.gate_proj.weight"), gate_up[2, :INNER])
    assert torch.equal(files.dense(f"{expert}.up_proj.weight"), gate_up[2, INNER:])
    down = stacked[f"{LAYER}.mlp.experts.down_proj"]
    assert torch.equal(files.dense(f"{expert}.down_proj.weight"), down[2])
    assert files.shape_of(f"{expert}.down_proj.weight") == (HIDDEN, INNER)
    assert len(files.names) == 2 + 3 * NUM_EXPERTS
    assert sum(files.bytes_of(name) for name in files.names) == sum(
        tensor.nbytes for tensor in stacked.values()
    )
    with pytest.raises(MissingTensorError):
        files.dense(f"{LAYER}.mlp.experts.3.down_proj.weight")
    files.close()
    dense = saved(tmp_path, {f"{LAYER}.mlp.experts.0.up_proj.weight": torch.randn(INNER, HIDDEN)})
    assert by_expert(dense) is dense
    dense.close()


def test_mixtral_names_its_experts_otherwise() -> None:
    block, own = f"{LAYER}.block_sparse_moe", f"{LAYER}.mlp"
    names = {f"{block}.gate.weight": f"{own}.gate.weight"}
    for theirs, ours in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
        names[f"{block}.experts.0.{theirs}.weight"] = f"{own}.experts.0.{ours}_proj.weight"
    names[f"{block}.e_score_correction_bias"] = f"{own}.gate.e_score_correction_bias"
    for model_type in ("mixtral", "minimax_m2"):
        hub_name = check_architecture(model_type).hub_name
        for theirs, ours in names.items():
            assert hub_name(theirs) == ours
            assert hub_name(ours) == ours


QUERIES = "model.layers.1.self_attn.q_proj"
DOWN = "model.layers.1.mlp.down_proj"


def part_spec(source: Path, **changes: Any) -> LoadSpec:
    own = {"devices": ["cpu"], "tensor_parallel": 2, "dtype": "float32", "kv_dtype": "fp32"}
    return LoadSpec(job_id="1", model="m", source=f"path:{source}", **own | changes)


def part_opened(source: Path, folder: Path, rank: int = 0, **changes: Any) -> OpenedModel:
    found = open_model(part_spec(source, **changes), folder, lambda _: None, rank=rank)
    assert isinstance(found, OpenedModel)
    return found


def test_each_rank_reads_its_rows_and_columns(tiny_directory: Path, tmp_path: Path) -> None:
    whole = part_opened(tiny_directory, tmp_path, tensor_parallel=1)
    parts = [part_opened(tiny_directory, tmp_path, rank) for rank in (0, 1)]
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
    follower = follower_spec(part_spec(tiny_directory, revision="main", sha256="0" * 64), parts[0])
    assert follower.source == f"path:{tiny_directory}", "others load what the first has chosen"
    assert follower.revision is None and follower.sha256 is None


def test_packed_weights_are_cut_where_their_groups_end(tmp_path: Path) -> None:
    """32 of the 64 outputs; of 96 inputs two groups and one."""
    kinds = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0
    types = dict(zip((f"{QUERIES}.weight", f"{DOWN}.weight"), kinds, strict=True))
    path = saved_gguf(tmp_path, types=types)
    whole = part_opened(path, tmp_path, tensor_parallel=1).weights
    parts = [part_opened(path, tmp_path, rank).weights for rank in (0, 1)]
    assert [part.stored(DOWN).shape for part in parts] == [(64, 64), (64, 32)]
    for name, axis in ((QUERIES, 0), (DOWN, 1)):
        found = torch.cat([part.stored(name).dequantize() for part in parts], dim=axis)
        assert torch.equal(found, whole.stored(name).dequantize())


@each_case(
    ("changes", "message"),
    [
        ({"tensor_parallel": 3}, "3 ranks cannot share 4 attention heads evenly"),
        ({"devices": ["cpu", "cpu"], "tensor_parallel": 4}, "set tensor_parallel to 2"),
        ({"prefix_disk_bytes": 1}, "prefix_disk_bytes is not built"),
        ({"speculation": "draft_model"}, "speculation draft_model is not built"),
    ],
)
def test_what_cannot_be_shared_is_refused_by_name(
    tiny_directory: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadSourceError, match=message):
        if "not built" in message:
            check_divided(part_spec(Path("/m"), **changes))
        else:
            part_opened(tiny_directory, tmp_path, **changes)
    if "not built" in message:
        check_divided(part_spec(Path("/m"), tensor_parallel=1, **changes))

"""Experts come out of files one by one, however these hold them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inference.loading.safetensors.tensors import SafetensorsFiles
from inference.loading.weights.experts import by_expert
from inference.models.families.registry import check_architecture
from inference.protocol.load_errors import MissingTensorError
from tests.cases import each_case

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


@each_case("model_type", ["mixtral", "minimax_m2"])
def test_mixtral_names_its_experts_otherwise(model_type: str) -> None:
    hub_name, block = check_architecture(model_type).hub_name, f"{LAYER}.block_sparse_moe"
    for theirs, ours in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
        own = f"{LAYER}.mlp.experts.0.{ours}_proj.weight"
        assert hub_name(f"{block}.experts.0.{theirs}.weight") == own == hub_name(own)
    assert hub_name(f"{block}.gate.weight") == f"{LAYER}.mlp.gate.weight"
    bias = f"{LAYER}.mlp.gate.e_score_correction_bias"
    assert hub_name(f"{block}.e_score_correction_bias") == bias == hub_name(bias)


def test_files_without_stacks_stay_as_they_are(tmp_path: Path) -> None:
    dense = saved(tmp_path, {f"{LAYER}.mlp.experts.0.up_proj.weight": torch.randn(INNER, HIDDEN)})
    assert by_expert(dense) is dense
    dense.close()

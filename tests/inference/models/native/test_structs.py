"""The native decoder is given nothing that is not as large as it reads."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch

from inference.loading.weights.tensor_files import TensorFiles
from inference.models.errors import UnfitWeightsError
from inference.models.native.model import NativeModel
from inference.models.native.packing import Format, pack
from inference.models.native.structs import CModel, Part, fill
from tests.cases import each_case
from tests.inference.models.ranks import MemoryTensor, random_tensors, weights_of
from tests.inference.models.stored_weights import stored_as
from tests.inference.models.tiny_configs import config_of

LAYER = "model.layers.0"
ATTENTION, MLP, MIXER = (f"{LAYER}.{own}" for own in ("self_attn", "mlp", "linear_attn"))
EXPERT = "mlp.experts.1"
Q8 = stored_as(Format.Q8, 32, 64, seed=1)


@each_case(
    ("name", "tensor", "shape", "words"),
    [
        ("qwen3", f"{ATTENTION}.o_proj.weight", (48, 64), "output has 1 parts with 48 outputs; 64"),
        ("qwen3", f"{ATTENTION}.q_norm.weight", (15,), r"query_norm is \(15,\); \(16,\) are read"),
        ("qwen3", f"{MLP}.gate_proj.weight", (32, 64), "gate_up has 1 parts with 128 outputs; 192"),
        ("qwen3", f"{MLP}.down_proj.weight", (64, 64), r"down is \(64, 64\); \(64, 96\)"),
        ("qwen3", f"{MLP}.down_proj.bias", (63,), r"down bias is \(63,\); \(64,\) are read"),
        ("qwen3", "model.norm.weight", (63,), "final_norm weight is"),
        ("qwen3", "lm_head.weight", (96, 32), r"head is \(96, 32\); \(96, 64\) are read"),
        ("qwen2_moe", f"{MLP}.gate.weight", (5, 64), r"experts router is \(6, 64\); \(7, 64\)"),
        ("qwen2_moe", f"{LAYER}.{EXPERT}.down_proj.weight", (64, 48), "experts down 1 is"),
        ("qwen2_moe", f"{LAYER}.{EXPERT}.up_proj.weight", None, "stored in several formats"),
        ("glm4_moe_lite", f"{ATTENTION}.q_a_layernorm.weight", (95,), "latent query_norm is"),
        ("glm4_moe_lite", f"{ATTENTION}.q_b_proj.weight", (96, 96), "latent queries has 1 parts"),
        (
            "glm4_moe",
            "model.layers.1.mlp.gate.e_score_correction_bias",
            (5,),
            "experts choice_bias is",
        ),
        ("qwen3_5", f"{MIXER}.dt_bias", (3,), r"delta dt_bias is \(3,\); \(4,\)"),
        ("lfm2", f"{LAYER}.conv.conv.weight", (32, 1, 2), "conv weight is"),
    ],
)
def test_a_part_of_another_size_is_named(
    library: ctypes.CDLL, name: str, tensor: str, shape: tuple[int, ...] | None, words: str
) -> None:
    config = config_of(name)
    files = {own: MemoryTensor(values) for own, values in random_tensors(config).items()}
    assert tensor in files or tensor.endswith("bias")
    files[tensor] = MemoryTensor(torch.zeros(shape)) if shape else MemoryTensor(Q8.codes, Q8)
    with pytest.raises(UnfitWeightsError, match=words):
        NativeModel(library, config, weights_of(TensorFiles(files)), 64, "fp32")


def test_panels_are_as_large_as_they_are_read(library: ctypes.CDLL) -> None:
    head = pack(Q8, library)
    fill(Part(CModel, {"head": (32, 64)}, head=head), library, "the model's")
    short = Part(CModel, {"head": (32, 64)}, head=replace(head, panels=head.panels[:-1]))
    with pytest.raises(UnfitWeightsError, match=r"model.s head has \d+ bytes; \d+ are read"):
        fill(short, library, "the model's")

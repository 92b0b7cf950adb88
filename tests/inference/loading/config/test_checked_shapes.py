"""Weight files whose tensors have other shapes than their config declares are refused by name."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file

from inference.loading.config.checked_shapes import check_module_tensors, check_tensors
from inference.models.config import ModelConfig
from inference.models.families.registry import family_of
from inference.models.layer_configs import ExpertsConfig, MambaConfig
from inference.protocol.load_errors import BadFileError, MissingTensorError, WrongShapeError
from tests.cases import each_case
from tests.inference.loading.conftest import (
    edit_json,
    edit_tensors,
    opened,
    save_gguf,
)
from tests.inference.models.dense_weights import TINY

LAYER = "model.layers.0."


@each_case(
    ("name", "shape", "words"),
    [
        (f"{LAYER}self_attn.q_proj.weight", (48, 64), "48 x 64 and should be 64 x 64"),
        (f"{LAYER}self_attn.k_proj.weight", (16, 64), "16 x 64 and should be 32 x 64"),
        (f"{LAYER}self_attn.v_proj.weight", (32, 32), "32 x 32 and should be 32 x 64"),
        (f"{LAYER}self_attn.o_proj.weight", (64, 32), "64 x 32 and should be 64 x 64"),
        (f"{LAYER}mlp.gate_proj.weight", (64, 64), "64 x 64 and should be 96 x 64"),
        (f"{LAYER}mlp.down_proj.weight", (64, 64), "64 x 64 and should be 64 x 96"),
        (f"{LAYER}input_layernorm.weight", (63,), "63 and should be 64"),
        ("lm_head.weight", (60, 64), "60 x 64 and should be 64 x 64"),
        # No family declares it; it is checked because it is read.
        (f"{LAYER}self_attn.q_proj.bias", (48,), "48 and should be 64"),
    ],
)
def test_a_tensor_of_another_shape_is_named(
    name: str, shape: tuple[int, ...], words: str, tiny_directory: Path, tmp_path: Path
) -> None:
    directory = copytree(tiny_directory, tmp_path / "model")
    edit_tensors(directory, {name: torch.zeros(shape)})
    sources = [directory]
    if not name.endswith("bias"):
        weights = load_file(directory / "model.safetensors")
        sources.append(save_gguf(tmp_path / "x.gguf", weights))
    for source in sources:
        with pytest.raises(BadFileError, match=f"{name} is {words}") as caught:
            opened(source, tmp_path)
        assert caught.value.failure.code == "bad_file"


def test_a_config_of_another_width_is_refused_by_the_first_tensor(
    tiny_directory: Path, tmp_path: Path
) -> None:
    edit_json(tiny_directory / "config.json", hidden_size=128)
    with pytest.raises(WrongShapeError, match=r"embed_tokens\.weight is 64 x 64 and .* 64 x 128"):
        opened(tiny_directory, tmp_path)


@dataclass(frozen=True, slots=True)
class Declared:
    shapes: dict[str, tuple[int, ...]]

    @property
    def names(self) -> set[str]:
        return set(self.shapes)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.shapes[name]


EXPERTS = ExpertsConfig(num_experts=2, experts_per_token=1, intermediate_size=32)
CONFIG = replace(
    TINY,
    architecture="mixtral",
    vocab_size=8,
    intermediate_size=64,
    num_layers=1,
    tie_embeddings=True,
    mlps=("sparse",),
    experts=EXPERTS,
)
Shapes = dict[str, tuple[int, ...]]


def shapes_of(config: ModelConfig) -> Shapes:
    """Each tensor that a family declares, experts one by one."""
    return {
        name: tensor.shape[1:] if tensor.parts else tensor.shape
        for tensor in family_of(config).tensors(config)
        for name in tensor.parts or (tensor.name,)
    }


MIXTURE = shapes_of(CONFIG)


EXPERT, SHARED = f"{LAYER}mlp.experts.1.down_proj", f"{LAYER}mlp.shared_expert"
WITH_SHARED = replace(CONFIG, experts=replace(EXPERTS, shared_intermediate_size=32))
MAMBA = MambaConfig(num_heads=4, head_dim=16, num_groups=2, state_size=16, conv_kernel=4)
STATES = replace(CONFIG, architecture="bamba", mixers=("mamba",), mamba=MAMBA, mlps=())
STATE = f"{LAYER}mamba."


@each_case(
    ("config", "changes", "words"),
    [
        (CONFIG, {}, None),
        (CONFIG, {f"{EXPERT}.weight": (64, 16)}, rf"{EXPERT}\.weight is 64 x 16 and .* 64 x 32"),
        (CONFIG, {f"{EXPERT}.bias": (3,)}, "is 3 and should be 64"),
        # Axes of one entry may be left out and not added.
        *((WITH_SHARED, {f"{SHARED}_gate.weight": gate}, None) for gate in ((1, 64), (64,))),
        *(
            (WITH_SHARED, {name: shape}, f"{name} is")
            for name, shape in (
                (f"{SHARED}_gate.weight", (64, 1)),
                ("model.embed_tokens.weight", (1, 8, 64)),
                ("model.norm.weight", (64, 1)),
                (f"{LAYER}mlp.gate.weight", (2, 1, 64)),
            )
        ),
        # Vectors of a state may be folded.
        (
            STATES,
            {f"{STATE}{name}": (4, 1) for name in ("A_log", "D")}
            | {f"{STATE}conv1d.weight": (MAMBA.conv_channels, 4), f"{STATE}norm.weight": (2, 32)},
            None,
        ),
        (STATES, {f"{STATE}D": (1, 5)}, f"{STATE}D is"),
        (STATES, {f"{STATE}conv1d.weight": (4, 128)}, f"{STATE}conv1d.weight is"),
    ],
)
def test_each_tensor_is_checked_by_itself(
    config: ModelConfig, changes: Shapes, words: str | None
) -> None:
    with nullcontext() if words is None else pytest.raises(WrongShapeError, match=words):
        check_tensors(config, Declared(shapes_of(config) | changes))


def test_experts_that_are_not_there_are_counted_and_not_all_listed() -> None:
    fewer = {name: shape for name, shape in MIXTURE.items() if ".experts.1." not in name}
    with pytest.raises(MissingTensorError, match=r"lack .*experts\.1\.gate_proj.* and 2 more"):
        check_tensors(CONFIG, Declared(fewer))


def test_tensors_that_a_module_calls_alike_hold_as_many_numbers() -> None:
    """Files of other names are transformers' own business, and so is how axes are turned."""
    declared = {"wte.weight": (8, 64), "h.0.attn.weight": (64, 192)}
    files = {"transformer.wte.weight": (8, 64), "h.0.attn.weight": (192, 64), "h.0.mask": (9,)}
    check_module_tensors(declared, Declared(files), "transformer")
    with pytest.raises(WrongShapeError, match=r"transformer\.wte\.weight is 7 x 64"):
        check_module_tensors(
            declared, Declared(files | {"transformer.wte.weight": (7, 64)}), "transformer"
        )

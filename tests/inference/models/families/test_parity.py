"""Every family answers as transformers does, from safetensors and from GGUF, and from checkpoints
with towers, as older and newer releases of transformers write them."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import gguf
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from inference.models.registry import build_model
from inference.models.stored_weights import DenseWeight
from inference.models.transformers_backend.model import TransformersModel
from tests.cases import each_case
from tests.inference.loading import conftest
from tests.inference.models.families import parity
from tests.inference.models.families.latent_gguf import ROWS as LATENT
from tests.inference.models.families.mixtures import CASES
from tests.inference.models.families.rows import CONTEXT_TOKENS, LLAMA4, ROWS, Row
from tests.slow_cases import slow_but

pytestmark = pytest.mark.usefixtures("one_thread")

UNNORMED = {"use_qk_norm": False, "num_experts_per_tok": 1, "attn_temperature_tuning": False}
GEMMA4 = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "sliding_window": 20,
    "global_head_dim": 32,
    "tie_word_embeddings": True,
}
SHARING = Row(
    model_type="gemma4_text",
    config=GEMMA4
    | {
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 96,
        "final_logit_softcapping": 3.0,
    },
)
"""A config like the small models', with embeddings of each layer."""
EXPERTS = Row(
    model_type="gemma4_text",
    config=GEMMA4
    | {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 32,
    },
)
"""A config like the larger models'."""
ALL_ROWS = (
    {row.model_type: row for row in ROWS}
    | CASES
    | LATENT
    | {
        "qwen3, in a qwen3vl": Row("qwen3", architecture="qwen3vl"),
        "gemma4, sharing": SHARING,
        "gemma4, experts": EXPERTS,
        "as Scout": Row(model_type="llama4_text", config=LLAMA4),
        "as Maverick": Row(model_type="llama4_text", config=LLAMA4 | UNNORMED),
    }
)


class Saved(NamedTuple):
    reference: PreTrainedModel
    folder: Path
    """The folder of the safetensors."""


Saver = Callable[[str], Saved]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saver:
    """Makes a row's model once for all tests."""
    known: dict[str, Saved] = {}

    def save(name: str) -> Saved:
        if name not in known:
            reference = parity.build_reference(ALL_ROWS[name])
            folder = tmp_path_factory.mktemp("row") / "model"
            parity.save_safetensors(reference, folder)
            if name == "Kimi K2":
                conftest.edit_json(folder / "config.json", model_type="kimi_k2")
            known[name] = Saved(reference, folder)
        return known[name]

    return save


STORAGES = ("llama", "mistral", "gemma3_text", "V3", "as Scout")
"""Whole contexts, windows, both, latents, and chunks."""


@each_case("name", [name for name in ALL_ROWS if not name.startswith("gemma4")])
def test_safetensors(library: ctypes.CDLL, saved: Saver, name: str, tmp_path: Path) -> None:
    reference, folder = saved(name).reference, saved(name).folder
    on_torch = parity.built_on_torch(folder, tmp_path)
    for model in (on_torch, parity.natively(library, folder, tmp_path)):
        parity.check_batch_mates(reference, model)
    if name not in LATENT:
        parity.check_adaptable(reference, on_torch.config)
    if name in STORAGES:
        parity.check_preemption(reference, on_torch)
        parity.check_prefix_hits(reference, on_torch)


@each_case("name", [name for name, row in ALL_ROWS.items() if row.architecture])
def test_gguf(saved: Saver, name: str, tmp_path: Path) -> None:
    reference = saved(name).reference
    path = parity.save_gguf(ALL_ROWS[name], reference, tmp_path / "model.gguf")
    engine = parity.engine_of(parity.built_on_torch(path, tmp_path))
    parity.check_answers(reference, engine, [parity.prompt_of(61, seed=61)], 6)


def test_longrope_is_long_where_a_longer_context_is_offered(tmp_path: Path) -> None:
    divisors = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "long_factor": divisors,
        "short_factor": [1.0 + x / 8 for x in divisors],
        "partial_rotary_factor": 1.0,
        "original_max_position_embeddings": 32,
    }
    row = Row(
        model_type="phi3",
        config={"rope_parameters": scaling, "original_max_position_embeddings": 32},
    )
    reference = parity.build_reference(row)
    model = parity.opened(parity.save_safetensors(reference, tmp_path / "model"), tmp_path)
    for context_tokens, lengths in ((CONTEXT_TOKENS, (33, 50)), (32, (5, 20))):
        built = build_model(model.config, model.weights, context_tokens)
        engine = parity.engine_of(built, prefill_tokens_per_step=19, num_kv_blocks=16)
        prompts = [parity.prompt_of(length, seed=length) for length in lengths]
        parity.check_answers(reference, engine, prompts, 9)
    model.close()


@pytest.mark.parametrize(
    "name", slow_but(["gemma4, sharing", "gemma4, experts"], "gemma4, sharing")
)
def test_gemma_4_by_transformers_own_modules(saved: Saver, name: str, tmp_path: Path) -> None:
    built = parity.built_on_torch(saved(name).folder, tmp_path)
    assert isinstance(built, TransformersModel)
    parity.check_engine(saved(name).reference, built)


def nest(folder: Path, outer: str, tower: tuple[str, ...], *, is_new: bool) -> None:
    """Nests the model in ``folder`` as a checkpoint with a tower has it."""
    config = json.loads((folder / "config.json").read_bytes())
    nested = {"model_type": outer, "text_config": config, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(nested))
    tensors = load_file(folder / "model.safetensors")
    head = tensors.pop("lm_head.weight", None)
    prefix = "model.language_model." if is_new else "language_model.model."
    renamed = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    if head is not None:
        renamed["lm_head.weight" if is_new else "language_model.lm_head.weight"] = head
    images = {f"model.{name}" if is_new else name: torch.ones(2, 2) for name in tower}
    save_file(renamed | images, folder / "model.safetensors")


TOWER = ("vision_tower.patch.weight",)
LLAMA4_TOWER = ("vision_model.class_embedding", "multi_modal_projector.linear_1.weight")


@each_case(
    ("name", "outer", "is_new", "tower"),
    [
        ("mistral", "mistral3", False, TOWER),
        ("mistral", "mistral3", True, TOWER),
        ("ministral3", "mistral3", True, TOWER),
        ("gemma4, sharing", "gemma4", True, TOWER),
        ("as Scout", "llama4", False, LLAMA4_TOWER),
    ],
)
def test_a_checkpoint_with_a_tower_is_read_as_its_text(
    saved: Saver, name: str, outer: str, is_new: bool, tower: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved(name).folder, folder)
    nest(folder, outer, tower, is_new=is_new)
    model = parity.opened(folder, tmp_path)
    assert model.left_out == f"{len(tower)} tensors of images left out"
    built = build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()
    engine = parity.engine_of(built)
    parity.check_answers(saved(name).reference, engine, [parity.prompt_of(40, seed=4)], 6)


PACKED = {
    "ffn_gate_exps": ("experts.4.gate_proj", GGMLQuantizationType.Q4_1),
    "ffn_up_exps": ("experts.4.up_proj", GGMLQuantizationType.Q8_0),
    "ffn_down_exps": ("experts.4.down_proj", GGMLQuantizationType.Q5_0),
    "ffn_up_shexp": ("shared_expert.up_proj", GGMLQuantizationType.Q8_0),
}


def test_experts_stay_packed_or_are_quantised_while_loading(saved: Saver, tmp_path: Path) -> None:
    types = {part: type for part, (_, type) in PACKED.items()}
    reference, path = saved("qwen2_moe").reference, tmp_path / "x.gguf"
    found = parity.opened(parity.save_gguf(CASES["qwen2_moe"], reference, path, types), tmp_path)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for part, (name, type) in PACKED.items():
        stored = found.weights.stored(f"model.layers.1.mlp.{name}")
        values = gguf.dequantize(tensors[f"blk.1.{part}.weight"].data, type)
        expected = torch.from_numpy(values[4] if values.ndim == 3 else values)
        torch.testing.assert_close(stored.dequantize(), expected)
    assert found.weight_bytes == sum(tensor.n_bytes for tensor in tensors.values())
    found.close()
    folder, router = saved("qwen2_moe").folder, "model.layers.0.mlp.gate.weight"
    dense = conftest.opened(folder, tmp_path)
    # Codes and scales of 32 weights in 20 to 26 bytes, not 128: nearly all weights are experts'.
    for bits, most in ((4, 0.22), (5, 0.24), (6, 0.27)):
        found = conftest.opened(folder, tmp_path, quantization=f"q{bits}")
        expert = found.weights.stored("model.layers.0.mlp.experts.3.up_proj")
        assert not isinstance(expert, DenseWeight) and expert.bits == bits
        assert torch.equal(found.weights.tensor(router), dense.weights.tensor(router))
        assert found.weight_bytes < most * dense.weight_bytes
        assert found.need.weight_bytes < dense.need.weight_bytes
        found.close()
    dense.close()

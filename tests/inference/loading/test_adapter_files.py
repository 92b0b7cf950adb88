"""Adapters are checked against their base before a weight is read, and unsupported ones are refused
with the name of the unsupported part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.loading.adapter_files import OpenedAdapter, open_adapter, read_adapter_config
from inference.models.config import ModelConfig
from inference.models.layer_configs import ExpertsConfig
from inference.protocol import load_errors as errors
from inference.protocol.load import AdapterSpec
from tests.cases import each_case
from tests.inference.adapter_files import write_adapter
from tests.inference.loading.conftest import edit_json, edit_tensors
from tests.inference.models.dense_weights import TINY

CONFIG = replace(TINY, hidden_size=32, intermediate_size=48, head_dim=8, max_positions=64)
LAYER = "model.layers.0."
QUERIES = f"{LAYER}self_attn.q_proj"
BASE = {
    f"model.layers.{layer}.{name}.weight": torch.zeros(shape)
    for layer in range(2)
    for name, shape in {
        **{f"self_attn.{name}_proj": (32, 32) for name in "qo"},
        **{f"self_attn.{name}_proj": (16, 32) for name in "kv"},
        **{f"mlp.{name}_proj": (48, 32) for name in ("gate", "up")},
        "mlp.down_proj": (32, 48),
    }.items()
}
MINIMAL: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q"]}


def opened(directory: Path, config: ModelConfig = CONFIG, **changes: Any) -> OpenedAdapter:
    spec = AdapterSpec(**{"name": "one", "source": f"path:{directory}", **changes})
    return open_adapter(spec, config, Path("/nowhere"), lambda _: None)


def test_every_target_is_read_with_its_own_rank_and_scale(tmp_path: Path) -> None:
    ranks = {"k_proj": 16, r"layers\.1\.self_attn\.v_proj": 4}
    own = {"rank_pattern": ranks, "alpha_pattern": {"o_proj": 2.0}}
    write_adapter(tmp_path, BASE, seed=1, rank=4, alpha=8, **own)
    modules = opened(tmp_path).weights.modules
    assert modules.keys() == {name.removesuffix(".weight") for name in BASE}
    scales = [modules[f"{LAYER}self_attn.{name}_proj"].scale for name in "qko"]
    assert scales == [2.0, 0.5, 0.5]
    assert modules[f"{LAYER}self_attn.k_proj"].down.shape == (16, 32)
    assert read_adapter_config(MINIMAL | {"use_rslora": True}).scale_of("q") == 4.0
    assert read_adapter_config(MINIMAL).scale_of("q") == 2.0


def test_targets_as_one_word_or_an_expression_and_a_fingerprint(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("same", 1), ("b", 2)):
        write_adapter(tmp_path / name, BASE, seed=seed, targets=("q_proj", "v_proj"))
    a, same, b = (opened(tmp_path / name).fingerprint for name in ("a", "same", "b"))
    assert a == same != b
    for targets in ("all-linear", ["all-linear"], r".*\.(q|v)_proj"):
        edit_json(tmp_path / "same" / "adapter_config.json", target_modules=targets)
        found = opened(tmp_path / "same")
        assert len(found.weights.modules) == 4 and found.fingerprint != a


@each_case(
    ("field", "value", "words"),
    [
        ("use_dora", True, "DoRA"),
        ("modules_to_save", ["lm_head"], "modules_to_save"),
        ("trainable_token_indices", [1], "trainable_token_indices"),
        ("target_parameters", ["experts.gate_up_proj"], "target_parameters"),
        ("bias", "all", "bias 'all'"),
        ("lora_bias", True, "lora_bias"),
        ("fan_in_fan_out", True, "fan_in_fan_out"),
        ("peft_type", "IA3", "'IA3'"),
        ("init_lora_weights", "pissa_niter_4", "pissa_niter_4"),
        ("r", 0, "r is 0"),
        ("r", 513, "from 1 to 512"),
        ("lora_alpha", "8", "lora_alpha"),
        ("lora_alpha", 1e300, "lora_alpha"),
        ("target_modules", [], "target_modules"),
        ("rank_pattern", {"(": 4}, "rank_pattern"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(field: str, value: Any, words: str) -> None:
    with pytest.raises(errors.BadAdapterError, match=words):
        read_adapter_config(MINIMAL | {field: value})


def pair(name: str, features: int, outputs: int) -> dict[str, torch.Tensor]:
    down, up = torch.zeros(4, features), torch.zeros(outputs, 4)
    return {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}


TABLE = "model.embed_tokens.lora_embedding_A"


@each_case(
    ("tensors", "words"),
    [
        ({f"{QUERIES}.lora_A.weight": torch.zeros(4, 31)}, "4 x 31 and should be"),
        ({f"{QUERIES}.lora_B.weight": torch.zeros(32, 5)}, "rank 4"),
        ({f"{QUERIES}.lora_B.weight": None}, "lacks lora_B"),
        (dict.fromkeys(pair(QUERIES, 32, 32)), "lacks model.layers.0.self_attn.q_proj"),
        (pair("lm_head", 32, 64), "output head"),
        ({TABLE: torch.zeros(4, 64)}, "embedding_A, which is no part"),
        (pair("model.layers.9.mlp.up_proj", 32, 48), "no projection of the base model"),
        ({f"{QUERIES}.lora_A.weight": torch.full((4, 32), float("nan"))}, "not all numbers"),
        ({f"{QUERIES}.lora_magnitude_vector": torch.zeros(32)}, "no part of a"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, tensors: dict[str, torch.Tensor | None], words: str
) -> None:
    write_adapter(tmp_path, BASE, seed=1)
    edit_tensors(tmp_path, {f"base_model.model.{name}": t for name, t in tensors.items()})
    with pytest.raises(errors.BadAdapterError, match=words):
        opened(tmp_path)


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    write_adapter(tmp_path, BASE, seed=1)
    refused: tuple[tuple[dict[str, str], type[errors.LoadError], str], ...] = (
        ({"sha256": "0" * 64}, errors.HashMismatchError, "0000"),
        ({"revision": "main"}, errors.BadSourceError, "revision"),
        ({"source": "pypi:some-adapter"}, errors.BadSourceError, "a hub or path:"),
        ({"source": "path:/nowhere"}, errors.MissingFileError, "nowhere"),
    )
    for changes, error, words in refused:
        with pytest.raises(error, match=words):
            opened(tmp_path, **changes)
    experts = ExpertsConfig(num_experts=4, experts_per_token=2, intermediate_size=48)
    sparse = replace(CONFIG, architecture="qwen3_moe", mlps=("sparse", "sparse"), experts=experts)
    with pytest.raises(errors.BadAdapterError, match="belongs to experts"):
        opened(tmp_path, sparse)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(errors.BadAdapterError, match="not JSON"):
        opened(tmp_path)
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(errors.LoadError, match="has no adapter_config"):
        opened(tmp_path)

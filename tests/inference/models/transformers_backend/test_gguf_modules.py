"""GGUF files of architectures that no family here reads, read by transformers' own reader into its
own modules: written as llama.cpp's converter does, and held against the weights' own model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import PreTrainedModel

from inference.loading.gguf.config import read_gguf_config
from inference.loading.gguf.header import GGUFHeader, TensorInfo, read_header
from inference.loading.gguf.module import DequantisedTensors, read_module_config
from inference.models.families.registry import FAMILIES, check_gguf_architecture
from inference.models.families.transformers_modules import MODULES
from inference.models.registry import build_fastest_model
from inference.protocol.load_errors import BadFileError, UnknownArchitectureError
from tests.inference.models.families import parity, tiny_gguf
from tests.inference.models.families.rows import CONTEXT_TOKENS, Row

Changed = Callable[[str, torch.Tensor, Any], torch.Tensor]
"""What the converter makes of a tensor, by GGUF's name."""


def _natural(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    return values


def _gpt2(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    turned = ("attn_qkv.weight", "ffn_down.weight", "ffn_up.weight", "attn_output.weight")
    return values.T if name.endswith(turned) else values


def _nemotron(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    return values + 1 if name.endswith("norm.weight") else values


def _mamba(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    if name.endswith("ssm_a"):
        return -values.exp()
    return values.squeeze(1) if name.endswith("ssm_conv1d.weight") else values


def _bloom(name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    """Queries of all heads, then keys and values, instead of head by head."""
    if "attn_qkv" not in name:
        return values
    by_head = values.view(config.n_head, 3, -1, *values.shape[1:])
    return by_head.transpose(0, 1).reshape(values.shape)


ROPE: dict[str, Any] = {"rope_theta": 5000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
ROTATED = {"rope.freq_base": 5000.0, "rope.dimension_count": 8}
EPS = {"attention.layer_norm_epsilon": 1e-5}
CASES: dict[str, tuple[Row, dict[str, Any], Changed]] = {
    "bloom": (
        Row(model_type="bloom", config={"tie_word_embeddings": True}, without=("head_dim",)),
        EPS,
        _bloom,
    ),
    "falcon": (
        Row(
            model_type="falcon",
            config={
                "tie_word_embeddings": True,
                "rope_parameters": ROPE | {"partial_rotary_factor": 1.0},
            },
            without=("head_dim",),
        ),
        EPS | {"rope.freq_base": 5000.0, "attention.head_count_kv": 1},
        _natural,
    ),
    "gpt2": (
        Row(model_type="gpt2", config={"num_key_value_heads": 4, "tie_word_embeddings": True}),
        EPS,
        _gpt2,
    ),
    "mamba": (
        Row(
            model_type="mamba",
            config={"state_size": 8, "conv_kernel": 4, "expand": 2, "tie_word_embeddings": True},
            without=("intermediate_size",),
        ),
        {
            "ssm.conv_kernel": 4,
            "ssm.state_size": 8,
            "ssm.time_step_rank": 4,
            "ssm.inner_size": 128,
            "attention.layer_norm_rms_epsilon": 1e-5,
        },
        _mamba,
    ),
    "nemotron": (
        Row(model_type="nemotron", config={"rope_parameters": ROPE}),
        EPS | ROTATED,
        _nemotron,
    ),
    "stablelm": (
        Row(model_type="stablelm", config={"rope_parameters": ROPE}),
        EPS | ROTATED,
        _natural,
    ),
}


def save(architecture: str, path: Path) -> PreTrainedModel:
    row, keys, changed = CASES[architecture]
    reference = parity.build_reference(row)
    config, kind = reference.config, parity.kind_of(architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in reference.state_dict().items():
            if name != "lm_head.weight" or not config.tie_word_embeddings:
                own = name.removeprefix("transformer.")
                known = names.get_name(name, (".weight", ".bias")) or tiny_gguf.name_of(names, own)
                yield own, changed(known, weight.float(), config)

    sizes = {
        "context_length": CONTEXT_TOKENS,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
    }
    if hasattr(config, "num_attention_heads"):
        sizes |= {"attention.head_count": config.num_attention_heads}
        sizes["feed_forward_length"] = getattr(config, "intermediate_size", None) or 256
        sizes["attention.head_count_kv"] = getattr(config, "num_key_value_heads", None) or 4
    tiny_gguf.write(path, kind, config, tensors(), sizes | keys)
    return reference


@pytest.mark.parametrize(
    "architecture",
    [
        "falcon",
        *(pytest.param(name, marks=pytest.mark.slow) for name in MODULES if name != "falcon"),
    ],
)
def test_the_engine_answers_as_the_written_model_does(architecture: str, tmp_path: Path) -> None:
    reference = save(architecture, tmp_path / "model.gguf")
    opened = parity.opened(tmp_path / "model.gguf", tmp_path)
    model, execution = build_fastest_model(opened.config, opened.weights, CONTEXT_TOKENS, tmp_path)
    opened.close()
    assert "transformers'" in execution and "slower" in execution
    assert opened.weights.report().endswith("F32 dense")
    assert model.config.max_positions == CONTEXT_TOKENS
    parity.check_prefix_hits(reference, model)


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    header = replace(_header(tmp_path), tensors={"rope_freqs.weight": _info(tmp_path)})
    config = read_gguf_config(_header(tmp_path))
    with pytest.raises(BadFileError, match=r"holds the tensor rope_freqs\.weight, which .*Falcon"):
        DequantisedTensors(header, config)


def test_a_file_in_parts_is_refused(tmp_path: Path) -> None:
    info = _info(tmp_path)
    parts = {"a": info, "b": replace(info, path=tmp_path / "second.gguf")}
    with pytest.raises(BadFileError, match="is one of 2 parts"):
        read_module_config(replace(_header(tmp_path), tensors=parts), "falcon")


def _header(folder: Path) -> GGUFHeader:
    path = folder / "model.gguf"
    if not path.exists():
        save("falcon", path)
    return read_header(path)


def _info(folder: Path) -> TensorInfo:
    return next(iter(_header(folder).tensors.values()))


def test_every_architecture_that_is_read_so_is_tried() -> None:
    assert CASES.keys() == MODULES.keys()
    assert not any(MODULES.keys() & set(family.gguf_architectures) for family in FAMILIES)


def test_what_is_not_read_is_refused_by_name() -> None:
    with pytest.raises(UnknownArchitectureError, match=r"'t5'; .*models\.md"):
        check_gguf_architecture("t5")

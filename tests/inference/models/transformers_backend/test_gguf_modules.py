"""GGUF files of architectures that no family here reads, read by transformers' own reader into its
own modules: written as llama.cpp's converter does, and held against the weights' own model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import PreTrainedModel

from inference.loading.gguf.config import read_gguf_config
from inference.loading.gguf.header import read_header
from inference.loading.gguf.module import DequantisedTensors, read_module_config
from inference.models.families.registry import FAMILIES, check_gguf_architecture
from inference.models.families.transformers_modules import MODULES
from inference.models.registry import build_fastest_model
from inference.protocol.load_errors import BadFileError, UnknownArchitectureError
from tests.inference.models.families import parity, tiny_gguf
from tests.inference.models.families.rows import CONTEXT_TOKENS, Row


def converted(architecture: str, name: str, values: torch.Tensor, config: Any) -> torch.Tensor:
    """What the converter makes of a tensor, by GGUF's name."""
    turned = ("attn_qkv.weight", "ffn_down.weight", "ffn_up.weight", "attn_output.weight")
    match architecture:
        case "gpt2" if name.endswith(turned):
            return values.T
        case "nemotron" if name.endswith("norm.weight"):
            return values + 1
        case "mamba" if name.endswith("ssm_a"):
            return -values.exp()
        case "mamba" if name.endswith("ssm_conv1d.weight"):
            return values.squeeze(1)
        case "bloom" if "attn_qkv" in name:
            # Queries of all heads, then keys and values, instead of head by head.
            by_head = values.view(config.n_head, 3, -1, *values.shape[1:])
            return by_head.transpose(0, 1).reshape(values.shape)
    return values


ROPE: dict[str, Any] = {"rope_theta": 5000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
ROTATED = {"rope.freq_base": 5000.0, "rope.dimension_count": 8}
SSM = ("conv_kernel", "state_size", "time_step_rank", "inner_size")
EPS = {"attention.layer_norm_epsilon": 1e-5}
TIED = {"tie_word_embeddings": True}
STATE = {"state_size": 8, "conv_kernel": 4, "expand": 2}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "bloom": (TIED, ("head_dim",), EPS),
    "falcon": (
        TIED | {"rope_parameters": ROPE | {"partial_rotary_factor": 1.0}},
        ("head_dim",),
        EPS | {"rope.freq_base": 5000.0, "attention.head_count_kv": 1},
    ),
    "gpt2": (TIED | {"num_key_value_heads": 4}, (), EPS),
    "mamba": (
        TIED | STATE,
        ("intermediate_size",),
        {f"ssm.{key}": value for key, value in zip(SSM, (4, 8, 4, 128), strict=True)}
        | {"attention.layer_norm_rms_epsilon": 1e-5},
    ),
    "nemotron": ({"rope_parameters": ROPE}, (), EPS | ROTATED),
    "stablelm": ({"rope_parameters": ROPE}, (), EPS | ROTATED),
}
"""What differs from the sizes of ``rows``, those that are left out, and GGUF's keys."""


def save(architecture: str, path: Path) -> PreTrainedModel:
    own_config, without, keys = CASES[architecture]
    row = Row(model_type=architecture, config=own_config, without=without)
    reference = parity.build_reference(row)
    config, kind = reference.config, parity.kind_of(architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in reference.state_dict().items():
            if name != "lm_head.weight" or not config.tie_word_embeddings:
                own = name.removeprefix("transformer.")
                known = names.get_name(name, (".weight", ".bias")) or tiny_gguf.name_of(names, own)
                yield own, converted(architecture, known, weight.float(), config)

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


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    save("falcon", tmp_path / "model.gguf")
    header = read_header(tmp_path / "model.gguf")
    info = next(iter(header.tensors.values()))
    odd = replace(header, tensors={"rope_freqs.weight": info})
    with pytest.raises(BadFileError, match=r"holds the tensor rope_freqs\.weight, which .*Falcon"):
        DequantisedTensors(odd, read_gguf_config(header))
    parts = {"a": info, "b": replace(info, path=tmp_path / "second.gguf")}
    with pytest.raises(BadFileError, match="is one of 2 parts"):
        read_module_config(replace(header, tensors=parts), "falcon")
    with pytest.raises(UnknownArchitectureError, match=r"'t5'; .*models\.md"):
        check_gguf_architecture("t5")


def test_every_architecture_that_is_read_so_is_tried() -> None:
    assert CASES.keys() == MODULES.keys()
    assert not any(MODULES.keys() & set(family.gguf_architectures) for family in FAMILIES)

"""Scales that files of NVFP4 hold beside the weights, one for a whole tensor or for each expert."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from benchmarks.weights.random_blocks import random_blocks
from inference.loading.config.hub_config import parse_config
from inference.loading.gguf.header import read_headers
from inference.loading.gguf.tensors import GGUFTensorFiles
from inference.loading.weights.experts import by_expert
from inference.models.registry import build_model
from inference.models.weights.stored import written_out
from inference.protocol.load_errors import BadFileError
from tests.inference.loading.conftest import SIZES, opened, save_directory, save_gguf
from tests.inference.loading.test_packed_gguf import (
    CONTEXT_TOKENS,
    TOLERANCE,
    WIDE,
    load_file,
    logits,
    relative_error,
)
from tests.inference.models.families import tiny_gguf

NVFP4 = GGMLQuantizationType.NVFP4
LAYER = "model.layers.0"
SCALES = {"mlp.gate_proj": 0.3, "mlp.up_proj": 1.7, "self_attn.v_proj": 2.5}


def file(tmp_path: Path, scales: dict[str, float], type: GGMLQuantizationType = NVFP4) -> Path:
    """Writes the file of a model of two layers; ``scales`` of weights in the first."""
    directory = save_directory(tmp_path / "hf", "llama", tie_word_embeddings=True, **WIDE)
    weights = load_file(directory / "model.safetensors")
    types = {name: type for name in weights if "_proj" in name}
    for name, scale in scales.items():
        weights[f"{LAYER}.{name}.scale"] = torch.tensor([scale])
        weights[f"{LAYER}.{name}.input_scale"] = torch.tensor([1.0])
    path = tmp_path / f"{type.name}-{len(scales)}.gguf"
    return save_gguf(path, weights, types=types, sizes=SIZES | WIDE)


def test_a_tensors_scale_multiplies_its_weights(tmp_path: Path) -> None:
    with_scales = opened(file(tmp_path, SCALES), tmp_path)
    without = opened(file(tmp_path, {}), tmp_path)
    for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "self_attn.v_proj"):
        found = written_out(with_scales.weights.stored(f"{LAYER}.{name}"))
        expected = written_out(without.weights.stored(f"{LAYER}.{name}")) * SCALES.get(name, 1.0)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)
        dense = with_scales.files.dense(f"{LAYER}.{name}.weight")
        torch.testing.assert_close(dense, expected, rtol=1e-6, atol=0.0)
    assert with_scales.left_out == "3 tensors of scales of activations left out"
    exact = build_model(with_scales.config, with_scales.weights, CONTEXT_TOKENS)
    other = build_model(without.config, without.weights, CONTEXT_TOKENS)
    assert relative_error(logits(exact), logits(other)) > TOLERANCE


def test_each_expert_of_a_stack_has_its_scale(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "num_experts": 3, "moe_intermediate_size": 256}
    config = parse_config(SIZES | {"model_type": "qwen3_moe", "num_experts_per_tok": 2} | sizes, {})
    blocks = random_blocks(np.random.default_rng(1), NVFP4, (3 * 256, 256), 1.0)
    writer = gguf.GGUFWriter(tmp_path / "experts.gguf", "qwen3moe")
    writer.add_tensor("blk.0.ffn_up_exps.weight", blocks.reshape(3, 256, -1), raw_dtype=NVFP4)
    writer.add_tensor("blk.0.ffn_up_exps.scale", np.array([0.5, 3.0, 0.1], np.float32))
    tiny_gguf.close(writer, tmp_path / "experts.gguf")

    files = by_expert(GGUFTensorFiles(read_headers([tmp_path / "experts.gguf"]), config))

    values = torch.from_numpy(gguf.dequantize(blocks, NVFP4)).view(3, 256, 256)
    for expert, scale in enumerate((0.5, 3.0, 0.1)):
        found = written_out(files.stored(f"{LAYER}.mlp.experts.{expert}.up_proj.weight"))
        torch.testing.assert_close(found, values[expert] * scale, rtol=1e-6, atol=0.0)
    files.close()


def test_the_scale_of_a_weight_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match=r"blk.0.ffn_up.scale .* scales are read of: .*NVFP4"):
        opened(file(tmp_path, {"mlp.up_proj": 2.0}, GGMLQuantizationType.Q4_1), tmp_path)

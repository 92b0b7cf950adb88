"""GGUF files of mixed formats through the loader and both decoders, against gguf's own values."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file

from inference.loading.config.checked_shapes import expected_tensors
from inference.loading.loader import OpenedModel
from inference.models.backend import AnyModel
from inference.models.native.build import find_compiler
from inference.models.registry import build_fastest_model, build_model
from inference.models.step_input import ALL_ROWS, StepInput
from tests.cases import each_case
from tests.inference.loading.conftest import (
    NUM_HEADS,
    NUM_KV_HEADS,
    SIZES,
    gguf_name,
    opened,
    save_directory,
    save_gguf,
)
from tests.inference.models.dense_weights import DenseWeights

WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""Rows of the K formats are whole super-blocks of 256."""
TOLERANCE = 0.1
"""The tolerance of the native decoder, whose activations have 8 bits and whose keys and values are
bfloat16: 0.01 to 0.05 with these weights. Its arithmetic is held to 1e-5 in
``native/test_packing``; here a wrong code, scale or row would be off by as much as the logits are
large."""
EXACT = 1e-5
CONTEXT_TOKENS, BLOCK_TOKENS = 64, 32

MIXES = {
    "Q4_K_M": ("Q4_K", "Q6_K", "Q6_K"),
    "Q5_K_M": ("Q5_K", "Q6_K", "Q6_K"),
    "Q2_K": ("Q2_K", "Q3_K", "Q6_K"),
    "Q3_K_M": ("Q3_K", "Q5_K", "Q6_K"),
    "Q5_0": ("Q5_0", "Q5_1", "Q8_0"),
    "Q4_1": ("Q4_1", "Q4_0", "Q8_0"),
    "IQ4_XS": ("IQ4_XS", "IQ4_NL", "Q6_K"),
    "IQ3_M": ("IQ3_S", "IQ3_XXS", "IQ3_S"),
    "IQ2_M": ("IQ2_XS", "IQ2_S", "IQ2_XXS"),
    "IQ1_M": ("IQ1_S", "IQ1_M", "Q2_K"),
    "TQ1_0": ("TQ1_0", "TQ2_0", "Q4_K"),
    "NVFP4": ("NVFP4", "MXFP4", "Q8_0"),
}
"""Formats of most projections; of v_proj and down_proj; of the table, which is the head as well."""


def mixed_file(tmp_path: Path, mix: str) -> Path:
    directory = save_directory(tmp_path / "hf", "llama", tie_word_embeddings=True, **WIDE)
    weights = load_file(directory / "model.safetensors")
    types = {name: _format(mix, name) for name, w in weights.items() if w.dim() == 2}
    return save_gguf(tmp_path / "x.gguf", weights, types=types, sizes=SIZES | WIDE)


def _format(mix: str, name: str) -> GGMLQuantizationType:
    most, some, table = MIXES[mix]
    if "embed_tokens" in name:
        return GGMLQuantizationType[table]
    is_other = "v_proj" in name or "down_proj" in name
    return GGMLQuantizationType[some if is_other else most]


def reference(file: Path, model: OpenedModel) -> AnyModel:
    """torch in float32 over what gguf itself makes of the file."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    names = expected_tensors(model.config)
    weights = {name: _values(tensors[gguf_name(name)]) for name in names}
    return build_model(
        model.config, DenseWeights(weights, torch.float32, torch.device("cpu")), CONTEXT_TOKENS
    )


def _values(tensor: gguf.ReaderTensor) -> torch.Tensor:
    values = gguf.dequantize(tensor.data, tensor.tensor_type)
    heads = {"attn_q": NUM_HEADS, "attn_k": NUM_KV_HEADS}.get(tensor.name.split(".")[-2])
    if heads is not None:
        pairs = values.reshape(heads, -1, 2, values.shape[-1])
        values = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
    return torch.tensor(values)


@torch.inference_mode()
def logits(model: AnyModel) -> torch.Tensor:
    step = StepInput.of_sequence(range(3, 43), BLOCK_TOKENS, logit_rows=ALL_ROWS)
    return model.forward(step, model.new_kv(2, BLOCK_TOKENS))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@each_case("mix", MIXES)
def test_a_mixed_file_has_ggufs_values_in_both_decoders(
    tmp_path: Path, mix: str, native_cache_dir: Path
) -> None:
    file = mixed_file(tmp_path, mix)
    model = opened(file, tmp_path, dtype="float32")
    expected = logits(reference(file, model))
    exact = build_model(model.config, model.weights, CONTEXT_TOKENS)
    assert relative_error(logits(exact), expected) < EXACT
    if find_compiler() is None:
        return
    model = opened(file, tmp_path)
    native, execution = build_fastest_model(
        model.config, model.weights, CONTEXT_TOKENS, native_cache_dir
    )
    assert execution.startswith("native")
    assert relative_error(logits(native), expected) < TOLERANCE
    report = model.weights.report()
    assert report.count(" kept in ") == len(set(MIXES[mix])) and report.count(" MB)") > 0
    assert "dense" not in report and "dequantised" not in report


def test_the_load_report_has_the_bytes(tmp_path: Path) -> None:
    weights = opened(mixed_file(tmp_path, "Q4_K_M"), tmp_path).weights
    layer = "model.layers.0"
    heads = [f"{layer}.self_attn.{name}_proj" for name in "qkv"]
    assert [part.sample.bits for part in weights.stored_parts(*heads)] == [4, 6]
    weights.stored_parts(f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj")
    weights.stored(f"{layer}.mlp.down_proj")
    # 256 x 384 and 2 x 512 x 256 weights at 4.625 bits; 256 x 128 and 256 x 512 at 6.5625.
    assert weights.report() == "4 x Q4_K kept in 4 bits (0.2 MB); 2 x Q6_K kept in 6 bits (0.1 MB)"


def test_without_the_native_decoder_the_report_reports_what_became_dense(tmp_path: Path) -> None:
    model = opened(mixed_file(tmp_path, "Q4_K_M"), tmp_path)
    build_model(model.config, model.weights, CONTEXT_TOKENS)
    report = model.weights.report()
    assert "4 x Q6_K dequantised: torch has no kernel for 6-bit codes of this kind" in report
    assert "10 x Q4_K 4-bit kernel" in report

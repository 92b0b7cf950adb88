"""Every GGUF block format against gguf's own dequantisation: by itself, in files of mixed formats
through both decoders, and with scales that lie beside the weights."""

from __future__ import annotations

import builtins
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors.torch import load_file

from benchmarks.gguf_files import random_blocks
from inference.loading.formats import FORMATS
from inference.loading.gguf import quants as gguf_quants
from inference.loading.gguf.header import READABLE_TYPES, read_headers
from inference.loading.gguf.tensors import GGUFTensorFiles
from inference.loading.hub_config import parse_config
from inference.loading.loader import OpenedModel
from inference.loading.weights.named_files import by_expert
from inference.models.backend import AnyModel
from inference.models.families.registry import family_of
from inference.models.native.library import find_compiler
from inference.models.registry import build_fastest_model, build_model
from inference.models.step_input import ALL_ROWS, StepInput
from inference.models.stored_weights import (
    CodebookWeight,
    DenseWeight,
    GroupedWeight,
    SuperBlockWeight,
    written_out,
)
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.loading import conftest as models
from tests.inference.models.dense_weights import DenseWeights
from tests.inference.models.families import tiny_gguf

BITS: dict[type, dict[str, int]] = {
    GroupedWeight: {"Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "MXFP4": 8},
    SuperBlockWeight: {"Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6},
    CodebookWeight: {
        **dict.fromkeys(("TQ1_0", "TQ2_0", "Q1_0"), 2),
        **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"), 3),
        **dict.fromkeys(("IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "NVFP4"), 4),
    },
}
EXTREMES = (0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0x7E00)
"""The extreme values as float16: zeros, numbers below the smallest normal one, the largest,
infinity, no number."""


def dequantized(blocks: np.ndarray, type: GGMLQuantizationType) -> npt.NDArray[np.float32]:
    """Dequantises as gguf does, and Q1_0, which gguf does not read: a float16, and a bit for each
    of 128 signs."""
    if type.name == "Q1_0":
        split = blocks.reshape(len(blocks), -1, 18)
        scales = np.ascontiguousarray(split[:, :, :2]).view(np.float16).astype(np.float32)
        bits = np.unpackbits(split[:, :, 2:], axis=2, bitorder="little")
        return np.where(bits == 1, scales, -scales).reshape(len(blocks), -1)
    values: npt.NDArray[np.float32] = gguf.dequantize(blocks, type)
    return values


def any_bits(type: GGMLQuantizationType) -> np.ndarray:
    """Random blocks, blocks of equal bytes, and scales at the ends of float16's range."""
    block_features, block_bytes = GGML_QUANT_SIZES[type]
    generator = np.random.default_rng(7)
    blocks = generator.integers(0, 256, (64, 1024 // block_features, block_bytes), dtype=np.uint8)
    for row, byte in enumerate((0x00, 0xFF, 0x80, 0x7F)):
        blocks[row] = byte
    for row, half in enumerate(EXTREMES, start=8):
        for at in (0, 2, block_bytes - 4, block_bytes - 2):
            blocks[row, :, at : at + 2] = (half & 255, half >> 8)
    return blocks.reshape(64, -1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@each_case("type", sorted(READABLE_TYPES), ids=lambda type: type.name)
def test_every_format_equals_ggufs_own_values_whatever_its_bits(type: GGMLQuantizationType) -> None:
    values = np.random.default_rng(5).normal(size=(6, 512)).astype(np.float32)
    rows = models.blocks_of(values, type).view(np.uint8)
    stored, expected = gguf_quants.stored(rows, type), torch.from_numpy(dequantized(rows, type))
    assert stored.shape == (6, 512)
    if isinstance(stored, DenseWeight):
        assert type.name in ("F32", "F16", "BF16")
        assert torch.equal(stored.weight.float(), expected)
        return
    assert stored.bits == BITS[builtins.type(stored)][type.name]
    assert torch.equal(stored.dequantize(), expected)
    if isinstance(stored, SuperBlockWeight) and type.name == "Q4_K":
        # torch's kernels know no super-blocks
        assert torch.equal(stored.grouped().dequantize(), expected)
    assert stored.packed_bytes == FORMATS[type.name].native / 8 * 6 * 512
    rows = any_bits(type)
    exact, found = dequantized(rows, type), gguf_quants.stored(rows, type).dequantize().numpy()
    is_finite = np.isfinite(exact)
    assert np.array_equal(np.isfinite(found), is_finite)
    assert np.array_equal(found[is_finite], exact[is_finite])


WIDE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""Rows of the K formats are whole super-blocks of 256."""
TOLERANCE = 0.1
"""Of the native decoder, whose activations have 8 bits and whose keys and values are bfloat16: 0.01
to 0.05 with these weights. A wrong code, scale or row would be off by as much as the logits."""
CONTEXT_TOKENS, BLOCK_TOKENS = 64, 32
LAYER = "model.layers.0"
NVFP4 = GGMLQuantizationType.NVFP4
MIXES = [
    ("Q4_K", "Q6_K", "Q6_K"),
    ("Q2_K", "Q3_K", "Q5_K"),
    ("Q5_0", "Q5_1", "Q8_0"),
    ("Q4_1", "Q4_0", "Q8_0"),
    ("IQ4_XS", "IQ4_NL", "IQ3_S"),
    ("IQ1_S", "IQ1_M", "IQ2_XXS"),
    ("NVFP4", "MXFP4", "TQ2_0"),
]
"""Formats of most projections; of v_proj and down_proj; of the table, which is the head as well."""


def wide_file(
    folder: Path, most: str, some: str, table: str, scales: dict[str, float] | None = None
) -> Path:
    """``scales``: of weights in the first layer."""
    directory = models.save_directory(folder / "hf", "llama", tie_word_embeddings=True, **WIDE)
    weights = load_file(directory / "model.safetensors")
    types = {
        name: GGMLQuantizationType[
            table if "embed" in name else some if "v_proj" in name or "down" in name else most
        ]
        for name, weight in weights.items()
        if weight.dim() == 2
    }
    for name, scale in (scales or {}).items():
        weights[f"{LAYER}.{name}.scale"] = torch.tensor([scale])
        weights[f"{LAYER}.{name}.input_scale"] = torch.tensor([1.0])
    return models.save_gguf(folder / "x.gguf", weights, types=types, sizes=models.SIZES | WIDE)


def reference(file: Path, model: OpenedModel) -> AnyModel:
    """torch in float32 over what gguf itself makes of the file."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    names = [one.name for one in family_of(model.config).tensors(model.config)]
    weights = {name: models.values_of(tensors[models.gguf_name(name)], 4, 2) for name in names}
    dense = DenseWeights(weights, torch.float32, torch.device("cpu"))
    return build_model(model.config, dense, CONTEXT_TOKENS)


@torch.inference_mode()
def logits(model: AnyModel) -> torch.Tensor:
    step = StepInput.of_sequence(range(3, 43), BLOCK_TOKENS, logit_rows=ALL_ROWS)
    return model.forward(step, model.new_kv(2, BLOCK_TOKENS))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@each_case("mix", MIXES, ids=lambda mix: mix[0])
def test_a_mixed_file_has_ggufs_values_in_both_decoders(
    tmp_path: Path, mix: tuple[str, str, str], native_cache_dir: Path
) -> None:
    file = wide_file(tmp_path, *mix)
    model = models.opened(file, tmp_path, dtype="float32")
    expected = logits(reference(file, model))
    exact = build_model(model.config, model.weights, CONTEXT_TOKENS)
    assert relative_error(logits(exact), expected) < 1e-5
    if find_compiler() is None:
        return
    model = models.opened(file, tmp_path)
    given = model.config, model.weights, CONTEXT_TOKENS, native_cache_dir
    native, execution = build_fastest_model(*given)
    assert execution.startswith("native")
    assert relative_error(logits(native), expected) < TOLERANCE
    report = model.weights.report()
    assert report.count(" kept in ") == len(set(mix)) and report.count(" MB)") > 0
    assert "dense" not in report and "dequantised" not in report


def test_the_load_report_has_the_bytes_and_what_became_dense(tmp_path: Path) -> None:
    file = wide_file(tmp_path, *MIXES[0])
    weights = models.opened(file, tmp_path).weights
    heads = [f"{LAYER}.self_attn.{name}_proj" for name in "qkv"]
    assert [part.sample.bits for part in weights.stored_parts(*heads)] == [4, 6]
    weights.stored_parts(f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj")
    weights.stored(f"{LAYER}.mlp.down_proj")
    # 256 x 384 and 2 x 512 x 256 weights at 4.625 bits; 256 x 128 and 256 x 512 at 6.5625.
    assert weights.report() == "4 x Q4_K kept in 4 bits (0.2 MB); 2 x Q6_K kept in 6 bits (0.1 MB)"
    model = models.opened(file, tmp_path)
    build_model(model.config, model.weights, CONTEXT_TOKENS)
    report = model.weights.report()
    assert "4 x Q6_K dequantised: torch has no kernel for 6-bit codes of this kind" in report
    assert "10 x Q4_K 4-bit kernel" in report


def test_a_tensors_scale_multiplies_its_weights(tmp_path: Path) -> None:
    scales = {"mlp.gate_proj": 0.3, "mlp.up_proj": 1.7, "self_attn.v_proj": 2.5}
    kinds = ("NVFP4", "NVFP4", "F32")
    with_scales = models.opened(wide_file(tmp_path / "a", *kinds, scales), tmp_path)
    without = models.opened(wide_file(tmp_path / "b", *kinds), tmp_path)
    for name in (*scales, "mlp.down_proj"):
        found = written_out(with_scales.weights.stored(f"{LAYER}.{name}"))
        expected = written_out(without.weights.stored(f"{LAYER}.{name}")) * scales.get(name, 1.0)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)
        dense = with_scales.files[f"{LAYER}.{name}.weight"].dense()
        torch.testing.assert_close(dense, expected, rtol=1e-6, atol=0.0)
    assert with_scales.left_out == "3 tensors of scales of activations left out"
    with pytest.raises(BadFileError, match=r"blk.0.ffn_up.scale .* scales are read of: .*NVFP4"):
        models.opened(wide_file(tmp_path / "c", *MIXES[3], {"mlp.up_proj": 2.0}), tmp_path)


def test_each_expert_of_a_stack_has_its_scale(tmp_path: Path) -> None:
    sizes = {"hidden_size": 256, "num_experts": 3, "moe_intermediate_size": 256}
    config = parse_config(
        models.SIZES | {"model_type": "qwen3_moe", "num_experts_per_tok": 2} | sizes, {}
    )
    blocks = random_blocks(np.random.default_rng(1), NVFP4, (3 * 256, 256), 1.0)
    scales, path = (0.5, 3.0, 0.1), tmp_path / "experts.gguf"
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_tensor("blk.0.ffn_up_exps.weight", blocks.reshape(3, 256, -1), raw_dtype=NVFP4)
    writer.add_tensor("blk.0.ffn_up_exps.scale", np.array(scales, np.float32))
    tiny_gguf.close(writer, path)
    files = by_expert(GGUFTensorFiles(read_headers([path]), config))
    values = torch.from_numpy(gguf.dequantize(blocks, NVFP4)).view(3, 256, 256)
    for expert, scale in enumerate(scales):
        found = written_out(files[f"{LAYER}.mlp.experts.{expert}.up_proj.weight"].stored())
        torch.testing.assert_close(found, values[expert] * scale, rtol=1e-6, atol=0.0)
    files.close()

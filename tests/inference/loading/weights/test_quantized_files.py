"""Quantising while loading: what groups of 32 hold exactly and how far off they are otherwise, the
format of each weight, and the refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import dequantize
from gguf import quantize as quantize_as_gguf
from gguf.constants import GGMLQuantizationType as Type
from safetensors.torch import load_file

from inference.loading import loader
from inference.loading.hub_config import read_directory_config
from inference.loading.weights import quantized_files
from inference.loading.weights.tensor_files import SafetensorsFiles
from inference.models.layers import linear
from inference.models.layers.linear import QuantizedLinear
from inference.models.stored_weights import DenseWeight, GroupedWeight
from inference.protocol.load import LoadSpec
from inference.protocol.load_errors import BadFileError, BadSourceError
from tests.cases import each_case
from tests.inference.loading.conftest import (
    edit_tensors,
    opened,
    save_directory,
    save_gguf,
    saved_gguf,
)

LAYER = "model.layers.0"
UP, DOWN, TABLE = f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.down_proj", "model.embed_tokens"


@each_case(
    ("bits", "group_bytes", "tied"), [(4, 20, False), (4, 20, True), (5, 22, False), (6, 26, True)]
)
def test_tables_take_eight_bits_and_projections_what_was_asked_for(
    tmp_path: Path, bits: int, group_bytes: int, tied: bool
) -> None:
    """What fits no group stays dense, and biases come along."""
    sizes = {"tie_word_embeddings": tied, "intermediate_size": 80}
    directory = save_directory(tmp_path / "hf", "qwen2", **sizes)
    dense = opened(directory, tmp_path)
    model = opened(directory, tmp_path, quantization=f"q{bits}")
    stored = model.weights.stored
    tables = [TABLE] if tied else [TABLE, "lm_head"]
    assert [stored(name).bits for name in tables] == [8] * len(tables)
    (fused,) = model.weights.stored_parts(*(f"{LAYER}.self_attn.{one}_proj" for one in "qkv"))
    assert isinstance(fused.sample, GroupedWeight) and fused.sample.bits == bits
    queries = stored(f"{LAYER}.self_attn.q_proj").bias
    assert queries is not None
    assert torch.equal(queries, dense.weights.stored(f"{LAYER}.self_attn.q_proj").bias)
    assert torch.equal(stored(DOWN).weight, dense.weights.stored(DOWN).weight)
    final = "model.norm.weight"
    assert torch.equal(model.weights.tensor(final), dense.weights.tensor(final))
    projections = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 2 * 80 * 64) * group_bytes // 32
    floats = 2 * (64 * 80 + 64 + 2 * 32 + 2 * 64) + 64
    assert model.weight_bytes == len(tables) * 64 * 64 * 34 // 32 + projections + 4 * floats
    assert f"4 x q{bits} kept in {bits} bits" in model.weights.report()


@each_case(
    ("quantization", "found"),
    [("q8", "Q4_1"), ("q4", "Q8_0"), ("q6", "Q4_1, Q8_0"), ("none", "Q4_1, Q8_0")],
)
def test_a_file_of_other_bits_is_refused(tmp_path: Path, quantization: str, found: str) -> None:
    file = saved_gguf(tmp_path, types={f"{UP}.weight": Type.Q4_1, f"{DOWN}.weight": Type.Q8_0})
    words = f"{quantization} needs dense weights, and these files hold {found}; set quantization"
    with pytest.raises(BadSourceError, match=f"quantization {words} auto"):
        opened(file, tmp_path, quantization=quantization)


KEPT = "1 x {0} kept in {1} bits (0.0 MB); 1 x q5 kept in 5 bits (0.0 MB); 1 x q8 kept in 8 bits"
BOTH = "1 x Q4_0 kept in 4 bits (0.0 MB); 1 x Q8_0 kept in 8 bits; 1 x q4 kept in 4 bits (0.0 MB)"


@each_case(
    ("quantization", "types", "report"),
    [
        *(("q5", {UP: type}, KEPT.format(type.name, 5)) for type in (Type.Q5_0, Type.Q5_1)),
        ("q4", {UP: Type.Q4_0, TABLE: Type.Q8_0}, BOTH),
        *(("q8", {DOWN: type}, "3 x q8 kept in 8 bits (0.0 MB)") for type in (Type.F16, Type.BF16)),
    ],
)
def test_what_has_the_wanted_bits_already_is_kept_and_what_is_dense_is_quantised(
    tmp_path: Path, quantization: str, types: dict[str, Type], report: str
) -> None:
    file = saved_gguf(tmp_path, types={f"{name}.weight": type for name, type in types.items()})
    weights = opened(file, tmp_path, quantization=quantization).weights
    dense = load_file(file.parent / "hf" / "model.safetensors")[f"{DOWN}.weight"]
    weights.stored(UP)
    assert torch.allclose(weights.stored(DOWN).dequantize(), dense, atol=0.05)
    weights.embedding(TABLE)
    assert weights.report() == report


def test_what_is_not_to_be_quantised_is_left_alone(tiny_directory: Path, tmp_path: Path) -> None:
    weights = load_file(tiny_directory / "model.safetensors")
    types = {name: Type.Q8_0 for name, weight in weights.items() if weight.dim() == 2}
    file = save_gguf(tmp_path / "x.gguf", weights, types=types)
    for source, quantization in ((file, "q8"), (tiny_directory, "auto"), (tiny_directory, "none")):
        model = opened(source, tmp_path, quantization=quantization)
        assert model.unquantized is None
        assert isinstance(model.weights.stored("lm_head"), DenseWeight) == (source != file)


NO_FP8 = r"capability 8\.9 or more, which {} is not; use q8"
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def test_what_a_device_multiplies(tiny_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 products on a card take dense weights."""
    files = SafetensorsFiles([tiny_directory / "model.safetensors"])
    config = read_directory_config(tiny_directory)
    for wanted, dtype, device, capability, refusal in (
        ("fp8", "auto", CPU, None, NO_FP8.format("cpu")),
        ("fp8", "auto", CUDA, (8, 0), NO_FP8.format("cuda:0")),
        ("fp8", "auto", CUDA, (8, 9), None),
        *(
            (bits, "float32", device, (9, 0), refusal)
            for bits in ("q4", "q5", "q6", "q8")
            for device, refusal in ((CPU, None), (CUDA, f"{bits} and dtype float32 exclude each"))
        ),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, has=capability: has)
        given: dict[str, Any] = {"quantization": wanted, "dtype": dtype}
        spec = LoadSpec(job_id="1", model="m", source="path:/m", **given)
        with nullcontext() if refusal is None else pytest.raises(BadSourceError, match=refusal):
            assert quantized_files.check_quantization(files, config, spec, device) == wanted


def test_fp8_counts_a_byte_a_weight_and_leaves_tables_dense(tmp_path: Path) -> None:
    directory = save_directory(tmp_path / "hf", "llama", intermediate_size=40)
    dense = SafetensorsFiles([directory / "model.safetensors"])
    files = quantized_files.QuantizedFiles(dense, read_directory_config(directory), "fp8", 1)
    layer = "model.layers.0"
    assert files[f"{layer}.self_attn.q_proj.weight"].num_bytes == 64 * 64
    assert files[f"{layer}.self_attn.q_proj.weight"].format == "fp8"
    for dense in ("lm_head.weight", "model.embed_tokens.weight", f"{layer}.mlp.down_proj.weight"):
        assert files[dense].format == "F32"
    assert isinstance(files[f"{layer}.self_attn.q_proj.weight"].stored(), DenseWeight)
    files.close()


def test_copies_for_prompts_are_kept_where_memory_is_plenty_and_not_of_an_output_head(
    tiny_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "has_fast_bfloat16", lambda device: True)
    model = opened(tiny_directory, tmp_path, quantization="q8")
    up, head = model.weights.linear(UP), model.weights.linear("lm_head")
    needed = model.need.required_bytes
    monkeypatch.setattr(loader, "free_memory_bytes", lambda device: needed)
    lean = opened(tiny_directory, tmp_path, quantization="q8").weights.linear(UP)
    if not all(isinstance(one, QuantizedLinear) for one in (up, head, lean)):
        pytest.skip(model.weights.report())
    assert up.prefill_weight is not None
    assert head.prefill_weight is None and lean.prefill_weight is None


def test_values_that_no_group_holds_are_named(tiny_directory: Path, tmp_path: Path) -> None:
    for value in (float("nan"), float("inf"), -1e6):
        head = torch.zeros(64, 64)
        head[5, 5] = value
        edit_tensors(tiny_directory, {"lm_head.weight": head})
        model = opened(tiny_directory, tmp_path, quantization="q8")
        words = r"lm_head\.weight cannot be quantised: .*not finite, or beyond float16.* none"
        with pytest.raises(BadFileError, match=words):
            model.weights.stored("lm_head")


FLOAT16_STEP = 2**-11
"""Half of float16's distance between neighbours, as a part of the number."""


THREADS = ThreadPoolExecutor(2)


def error(weight: torch.Tensor, grouped: GroupedWeight) -> torch.Tensor:
    return (grouped.dequantize() - weight).abs()


@each_case(("bits", "theirs"), [(4, "Q4_1"), (5, "Q5_0"), (8, "Q8_0")])
def test_no_more_error_than_ggufs_own_reference(bits: int, theirs: str) -> None:
    """gguf quantises by the rules of llama.cpp. Of 8 bits ours has one code less."""
    weight = torch.randn(256, 512, generator=torch.Generator().manual_seed(2))
    type = Type[theirs]
    found = torch.from_numpy(dequantize(quantize_as_gguf(weight.numpy(), type), type))
    grouped = quantized_files.quantize(weight, bits, THREADS)
    ours = (error(weight, grouped) ** 2).mean()
    assert ours <= (1.01 if bits == 8 else 0.95) * (found - weight).square().mean()
    if bits == 8:
        assert grouped.minimums is None and grouped.codes.dtype == torch.int8
        half = 0.5001 * grouped.scales.float().repeat_interleave(32, dim=1)
        assert (error(weight, grouped) <= half).all()


@each_case(("bits", "lowest", "highest"), [(4, 0, 15), (5, -16, 15), (6, -32, 31), (8, -127, 127)])
def test_what_groups_can_hold_they_hold_exactly(bits: int, lowest: int, highest: int) -> None:
    generator = torch.Generator().manual_seed(3)
    scales = (torch.rand(40, 2, generator=generator) + 0.5).half()
    codes = torch.randint(lowest + 1, highest, (40, 64), generator=generator)
    codes[:, ::32] = highest if bits == 8 else lowest
    if bits == 4:
        codes[:, 1::32] = highest
    source = GroupedWeight(
        bits=bits,
        codes=codes.to(torch.uint8 if bits == 4 else torch.int8),
        scales=scales,
        minimums=torch.randn(40, 2, generator=generator).half() if bits == 4 else None,
    )
    grouped = quantized_files.quantize(source.dequantize(), bits, THREADS)
    assert torch.equal(grouped.codes, source.codes)
    assert torch.equal(grouped.dequantize(), source.dequantize())
    for value in (0.0, -0.25, 3.0):
        weight = torch.full((2, 32), value)
        off = error(weight, quantized_files.quantize(weight, bits, THREADS))
        assert (off <= abs(value) * FLOAT16_STEP * 2).all(), "a group of one value"


@each_case("bits", [4, 5, 6, 8])
def test_chunks_do_not_show(bits: int) -> None:
    features = 256
    num_rows = 2 * quantized_files.CHUNK_WEIGHTS // features + 3
    weight = torch.randn(num_rows, features, generator=torch.Generator().manual_seed(5))
    whole = quantized_files.quantize(weight, bits, THREADS)
    for rows in (slice(0, 7), slice(num_rows - 5, num_rows)):
        part = quantized_files.quantize(weight[rows], bits, THREADS)
        assert torch.equal(part.codes, whole.codes[rows])
        assert torch.equal(part.scales, whole.scales[rows])

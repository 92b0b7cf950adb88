"""Safetensors whose matrices are quantised, written as their publishers' tools write them: every
matrix is read by the formats' own definitions, and a model of them answers as transformers does
with those matrices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from inference.loading.weights.packed_files import PackedFiles
from inference.loading.weights.tensor_files import SafetensorsFiles
from inference.models.families.quantization import Quantization, read_quantization
from inference.models.registry import build_model
from inference.models.stored_weights import DenseWeight, GroupedWeight
from inference.protocol.load_errors import BadFileError
from tests.cases import each_case
from tests.inference.loading.conftest import opened
from tests.inference.models.families import parity
from tests.inference.models.families.rows import CONTEXT_TOKENS, Row

GROUP, BLOCK, WHOLE = 32, (40, 48), (2**16, 2**16)
INVERSE = "weight_scale_inv"
Tensors = dict[str, torch.Tensor]
AWQ_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbours each nibble of a word holds, the lowest first."""


def words_of(codes: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """(rows, codes) -> (rows, words) int32, one shift at a time."""
    per_word = 32 // bits
    words = torch.zeros(codes.shape[0], codes.shape[1] // per_word, dtype=torch.int64)
    for place, index in enumerate(order or range(per_word)):
        words |= codes[:, index::per_word].long() << (bits * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def random_codes(bits: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 2**bits, shape)


def random_scales(*shape: int) -> torch.Tensor:
    return (torch.rand(shape) + 0.5).mul(0.05).to(torch.float16)


def multiplied(codes: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(out, in), and (out, groups) of both others."""
    times = codes.shape[1] // scales.shape[1]
    zeros, scales = (n.float().repeat_interleave(times, dim=1) for n in (zeros, scales))
    return (codes.float() - zeros) * scales


def awq(rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    codes, zeros = random_codes(4, rows, columns), random_codes(4, rows, columns // GROUP)
    scales = random_scales(rows, columns // GROUP)
    tensors = {
        "qweight": words_of(codes.T, 4, AWQ_NIBBLES),
        "qzeros": words_of(zeros.T, 4, AWQ_NIBBLES),
        "scales": scales.T.contiguous(),
    }
    return tensors, multiplied(codes, zeros, scales)


def gptq(
    bits: int, rows: int, columns: int, *, by_activation: bool = False
) -> tuple[Tensors, torch.Tensor]:
    """8 bits with zeros in the middle, 4 bits with zeros anywhere but at 0; groups of features that
    follow each other, or that do not, which no packed format keeps."""
    codes, shape = random_codes(bits, rows, columns), (rows, columns // GROUP)
    zeros = torch.full(shape, 128) if bits == 8 else random_codes(4, *shape).clamp(min=1)
    scales, groups = random_scales(*shape), torch.arange(columns) // GROUP
    if by_activation:
        groups = groups[torch.randperm(columns)]
    tensors = {
        "qweight": words_of(codes, bits).T.contiguous(),
        "qzeros": words_of((zeros - 1).T, bits),
        "scales": scales.T.contiguous(),
        "g_idx": groups.to(torch.int32),
    }
    weight = (codes - zeros[:, groups]) * scales.float()[:, groups]
    return tensors, weight.bfloat16().float() if by_activation else weight


def compressed(rows: int, columns: int, *, has_zeros: bool) -> tuple[Tensors, torch.Tensor]:
    codes, shape = random_codes(4, rows, columns), (rows, columns // GROUP)
    zeros = random_codes(4, *shape) if has_zeros else torch.full(shape, 8)
    scales = random_scales(*shape).bfloat16()
    tensors = {
        "weight_packed": words_of(codes, 4),
        "weight_scale": scales,
        "weight_shape": torch.tensor([rows, columns]),
    }
    if has_zeros:
        tensors["weight_zero_point"] = words_of(zeros.T, 4).T.contiguous()
    return tensors, multiplied(codes, zeros, scales)


def int8_rows(rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    codes, scales = torch.randint(-128, 128, (rows, columns)), random_scales(rows, 1) / 16
    return {"weight": codes.to(torch.int8), "weight_scale": scales}, codes * scales.float()


def fp8(block: tuple[int, int], name: str, rows: int, columns: int) -> tuple[Tensors, torch.Tensor]:
    """The last blocks are parts of one. A block of all has one for activations, which is left."""
    weight, height, width = torch.randn(rows, columns), min(block[0], rows), min(block[1], columns)
    scales = torch.rand(-(-rows // height), -(-columns // width)) * 0.2 + 0.1
    spread = scales.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]
    tensors = {"weight": weight.to(torch.float8_e4m3fn), name: scales}
    if block == WHOLE:
        tensors |= {name: scales[0, 0], "activation_scale": torch.tensor(0.01)}
    return tensors, (tensors["weight"].float() * spread).bfloat16().float()


def groups_of(format: str, type: str, bits: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": type}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
    }


GPTQ, FP8 = {"quant_method": "gptq", "bits": 4}, {"quant_method": "fp8"}
PACKED = groups_of("pack-quantized", "int", 4)
FP8_ROWS = partial(fp8, (1, WHOLE[1]), "weight_scale")
BY_ACTIVATION = partial(gptq, 4, by_activation=True)
Make = Callable[[int, int], tuple[Tensors, torch.Tensor]]
CASES: dict[str, tuple[dict[str, Any], str, Make]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, "INT4", awq),
    "gptq 4 bits": (GPTQ, "INT4", partial(gptq, 4)),
    "gptq 8 bits": (GPTQ | {"bits": 8}, "INT8", partial(gptq, 8)),
    "gptq, ordered by activation": (GPTQ | {"desc_act": True}, "BF16", BY_ACTIVATION),
    "packed": (PACKED, "INT4", partial(compressed, has_zeros=False)),
    "packed, with zeros": (PACKED, "INT4", partial(compressed, has_zeros=True)),
    "int8": (groups_of("int-quantized", "int", 8), "INT8", int8_rows),
    "fp8 of rows": (groups_of("float-quantized", "float", 8), "F8_E4M3", FP8_ROWS),
    "fp8 of blocks": (
        FP8 | {"weight_block_size": [*BLOCK]},
        "F8_E4M3",
        partial(fp8, BLOCK, INVERSE),
    ),
    "fp8 of all": (FP8 | {"weight_block_size": None}, "F8_E4M3", partial(fp8, WHOLE, INVERSE)),
}


NAME = "m.q_proj.weight"
Change = Callable[[Tensors], object]


def packed(path: Path, tensors: Tensors, quantization: Quantization) -> PackedFiles:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return PackedFiles(SafetensorsFiles([path], is_quantized=True), quantization)


def opened_packed(
    case: str, folder: Path, change: Change = lambda _: None
) -> tuple[PackedFiles, Tensors, torch.Tensor]:
    """A matrix's files, the tensors in them, and the values that its format defines."""
    declared, _, make = CASES[case]
    quantization = read_quantization({"quantization_config": declared})
    assert quantization is not None
    tensors, expected = make(64, 96)
    change(tensors)
    named = {f"m.q_proj.{name}": tensor for name, tensor in tensors.items()}
    return packed(folder / "x.safetensors", named, quantization), tensors, expected


@each_case("case", CASES)
def test_a_matrix_comes_out_as_the_format_defines_it(case: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    format = CASES[case][1]
    files, tensors, expected = opened_packed(case, tmp_path)
    assert set(files) == {NAME}
    assert files[NAME].shape == (64, 96)
    assert files[NAME].format == format
    # What a zero point takes away is kept in float16, where it is below 2.
    torch.testing.assert_close(files[NAME].dense().float(), expected, rtol=0, atol=2**-11)
    rows = files[NAME].stored_rows(8, 24)
    assert rows.shape == (16, 96)
    found = rows.weight if isinstance(rows, DenseWeight) else rows.dequantize()
    assert torch.equal(found.float(), files[NAME].dense()[8:24].float())
    kept = files[NAME].stored()
    if format in ("INT4", "INT8"):
        assert isinstance(kept, GroupedWeight) and kept.bits == (4 if format == "INT4" else 8)
    read = {name: tensor for name, tensor in tensors.items() if name != "activation_scale"}
    assert files[NAME].num_bytes == sum(tensor.nbytes for tensor in read.values())


QUANTISED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@torch.no_grad()
def saved(case: str, folder: Path) -> PreTrainedModel:
    """A llama, or a mixture whose experts are quantised one by one; returned with the values that
    the files have."""
    torch.manual_seed(5)
    declared, _, make = CASES[case]
    reference = parity.build_reference(Row(model_type="llama"))
    parity.save_safetensors(reference, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, parameter in reference.named_parameters():
        if name.endswith(tuple(f"{end}.weight" for end in QUANTISED)):
            del tensors[name]
            own, values = make(*parameter.shape)
            tensors |= {name.removesuffix("weight") + key: value for key, value in own.items()}
            parameter.copy_(values)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_bytes())
    config["quantization_config"] = declared
    (folder / "config.json").write_text(json.dumps(config))
    return reference


@each_case("case", ["awq", "fp8 of blocks"])
def test_a_model_answers_as_transformers_does(case: str, tmp_path: Path) -> None:
    reference = saved(case, tmp_path / "model")
    model = parity.opened(tmp_path / "model", tmp_path)
    built = build_model(model.config, model.weights, CONTEXT_TOKENS)
    model.close()
    parity.check_batch_mates(reference, built)
    if case == "fp8 of blocks":  # may be quantised on its way in
        eight = opened(tmp_path / "model", tmp_path, quantization="q8")
        stored = eight.weights.stored("model.layers.0.mlp.up_proj")
        assert isinstance(stored, GroupedWeight) and stored.bits == 8


REFUSED: dict[str, dict[str, Any]] = {
    "'bitsandbytes'": {"quant_method": "bitsandbytes"},
    "'gptq' in 3 bits": {"quant_method": "gptq", "bits": 3},
    "'awq' in 4 bits": {"quant_method": "awq", "bits": 4, "version": "gemv"},
    "nvfp4-pack-quantized": groups_of("nvfp4-pack-quantized", "float", 4),
    "without its groups": {"quant_method": "compressed-tensors"},
    "'mxfp4'": {"quant_method": "mxfp4"},
    "bits is 4.0, not a whole number": {"quant_method": "gptq", "bits": 4.0},
}


def test_what_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    for words, refused in REFUSED.items():
        with pytest.raises(BadFileError, match=re.escape(words)):
            read_quantization({"quantization_config": refused})
    declared = {"quant_method": "fp8", "weight_block_size": [128, 64]}
    expected = Quantization(method="fp8", block=(128, 64))
    assert read_quantization({"text_config": {}, "quantization_config": declared}) == expected
    assert read_quantization({"text_config": {"quantization_config": declared}}) == expected
    assert read_quantization({"text_config": {}}) is None
    floats, unscaled = torch.zeros(64, 96), "no scales of rows, blocks or groups"
    scaled = {"m.weight": floats.to(torch.float8_e4m3fn)}
    for tensors, words in (
        (scaled, r"m\.weight is quantised and has no scale"),
        (scaled | {"m.weight_scale_inv": torch.zeros(1, 1).byte()}, "stored as U8"),
        *(
            (scaled | {"m.weight_scale": torch.ones(shape)}, unscaled)
            for shape in ((3, 1), (64, 2, 1), (64, 7), (65, 1))
        ),
        ({"m.weight": floats.to(torch.int8), "m.weight_scale": torch.ones(2, 2)}, unscaled),
    ):
        with pytest.raises(BadFileError, match=words):
            packed(tmp_path / "x.safetensors", tensors, Quantization(method="fp8"))


def _cut(name: str, axis: int = 0) -> Change:
    return lambda own: own.update({name: own[name].narrow(axis, 0, own[name].shape[axis] - 1)})


def _set(name: str, tensor: torch.Tensor) -> Change:
    return lambda tensors: tensors.update({name: tensor})


@each_case(
    ("case", "change", "words"),
    [
        ("awq", _cut("scales", 1), r"scales is 3 x 63 and should be 3 x 64"),
        ("awq", _cut("qzeros"), r"qzeros is 2 x 8 and should be 3 x 8"),
        ("awq", _set("scales", torch.ones(3, 64, dtype=torch.int32)), "scales is stored as I32"),
        ("awq", _set("qweight", torch.ones(96, dtype=torch.int32)), "should be a matrix"),
        ("gptq 8 bits", _cut("g_idx"), r"g_idx is 95 and should be 96"),
        ("gptq 8 bits", _cut("scales"), r"scales is 2 x 64|qzeros is 3 x 16 and should be 2 x 16"),
        ("packed", _cut("weight_packed"), "weight_packed has 63 rows"),
        ("packed", _cut("weight_packed", 1), "weight_packed has 11 words a row"),
        ("packed", _cut("weight_scale"), r"weight_scale is 63 x 3 and should be 64 x 3"),
        ("packed", _set("weight_shape", torch.tensor([64, 2**40])), "packed has 12 words a row"),
        ("packed", _set("weight_shape", torch.tensor([64])), "weight_shape is 64, and"),
        ("packed, with zeros", _cut("weight_zero_point", 1), "weight_zero_point is 8 x 2"),
        ("gptq 8 bits", _set("g_idx", torch.full((96,), 3).int()), "g_idx names the group 3 of 3"),
    ],
)
def test_parts_of_a_matrix_that_do_not_fit_each_other_are_named(
    case: str, change: Change, words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadFileError, match=words):
        opened_packed(case, tmp_path, change)[0][NAME].stored()

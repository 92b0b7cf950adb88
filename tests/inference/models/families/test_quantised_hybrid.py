"""Hybrids from quantised GGUF files, natively and on torch's operators."""

from __future__ import annotations

import copy
import ctypes
import random
import zlib
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from benchmarks.weights.random_blocks import random_blocks
from tests.cases import each_case
from tests.inference.loading.conftest import RANDOM_VALUE
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families.hybrid_gguf import (
    KINDS,
    Codes,
    Numbers,
    in_8_bits,
    rounded,
    save_gguf,
)
from tests.inference.models.families.test_hybrid import REFERENCES

PROMPT = random.Random(90).choices(range(tiny.VOCAB_SIZE), k=90)
ROUNDED_ACTIVATIONS = 0.3
"""Relative error of logits: a row of a model this narrow is one group of 8-bit codes. Features in a
wrong order make it more than one."""


@each_case("name", KINDS)
def test_quantised_gguf(name: str, library: ctypes.CDLL, tmp_path: Path) -> None:
    """Weights of 8 bits. torch computes in float32 what they stand for, as transformers does; the
    native decoder rounds its activations, too."""
    exact = rounded(REFERENCES[name]())
    file = tiny.save_tokenizer(tmp_path) / "model.gguf"
    save_gguf(exact, file, encode=in_8_bits)
    with torch.no_grad():
        expected = exact(torch.tensor([PROMPT])).logits[0]
    on_torch = tiny.logits_of(tiny.on_torch(file, tmp_path / "cache"), PROMPT)
    torch.testing.assert_close(on_torch, expected, rtol=1e-3, atol=1e-3)
    native = tiny.logits_of(tiny.natively(library, file, tmp_path / "cache"), PROMPT)
    error = float((native - expected).norm() / expected.norm())
    assert 0 < error < ROUNDED_ACTIVATIONS


WIDE = {
    "hidden_size": 256,
    "head_dim": 64,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "intermediate_size": 256,
}
"""What a block of a K-quant takes a row of."""
K_ERRORS = {"Q4_K": 0.005, "Q5_K": 0.005, "Q6_K": 0.15}
"""Relative error of a row's logits, by the median: where two experts are about as good, a row may
take the other one. Activations have 14 bits; of Q6_K the packing also rounds scales, to 2**-8 of a
block's largest, and these weights make some fifteen times as much of an error."""


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kind", K_ERRORS)
def test_k_quants(name: str, kind: str, library: ctypes.CDLL, tmp_path: Path) -> None:
    """Random blocks, and beside them a file of the numbers that they stand for."""
    reference = REFERENCES[name]()
    config = copy.deepcopy(reference.config)
    text = config.get_text_config()
    for key in set(WIDE) & set(text.to_dict()):
        setattr(text, key, WIDE[key])
    torch.manual_seed(3)
    wide = tiny.randomised(type(reference)(config))
    format = gguf.GGMLQuantizationType[kind]

    def codes(tensor: str, numbers: Numbers) -> tuple[Codes, gguf.GGMLQuantizationType]:
        generator = np.random.default_rng(zlib.crc32(tensor.encode()))
        return random_blocks(generator, format, numbers.shape, RANDOM_VALUE), format

    def values(tensor: str, numbers: Numbers) -> tuple[Codes, gguf.GGMLQuantizationType]:
        return gguf.dequantize(codes(tensor, numbers)[0], format), gguf.GGMLQuantizationType.F32

    found = {}
    for way, encode in (("codes", codes), ("values", values)):
        file = tmp_path / way / "model.gguf"
        file.parent.mkdir()
        tiny.save_tokenizer(file.parent)
        save_gguf(wide, file, encode=encode)
        found[way] = tiny.logits_of(tiny.on_torch(file, tmp_path), PROMPT)
    torch.testing.assert_close(found["codes"], found["values"], rtol=1e-3, atol=1e-3)
    file = tmp_path / "codes" / "model.gguf"
    native = tiny.logits_of(tiny.natively(library, file, tmp_path), PROMPT)
    errors = (native - found["values"]).norm(dim=1) / found["values"].norm(dim=1)
    assert 0 < errors.median() < K_ERRORS[kind]

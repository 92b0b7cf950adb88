"""Hybrids from quantised GGUF files, natively and on torch's operators."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path

import torch

from tests.cases import each_case
from tests.inference.models.families import tiny_hybrid as tiny
from tests.inference.models.families.hybrid_gguf import (
    KINDS,
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

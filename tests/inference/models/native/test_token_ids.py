"""The native decoder reads its embedding by token id: it refuses ids that have no row there."""

from __future__ import annotations

import ctypes

import pytest
import torch

from inference.models.native.packing import Format
from tests.cases import each_case
from tests.inference.models.native.packed_decoder import VOCAB_SIZE, Sequences, decoder


@each_case("token_id", [-1, VOCAB_SIZE, 2**31 - 1, -(2**31)])
def test_a_token_outside_the_vocabulary_stops_the_step(library: ctypes.CDLL, token_id: int) -> None:
    native = decoder(library, Format.Q8, dequantized=False)
    expected = Sequences(native, 2).run([1, 2, 3], [0, 0, 1])
    sequences = Sequences(native, 2)
    with pytest.raises(IndexError, match="outside the vocabulary"):
        sequences.run([1, token_id, 3], [0, 0, 1])
    assert torch.equal(Sequences(native, 2).run([1, 2, 3], [0, 0, 1]), expected)

"""Where a step's logits lie, and the token ids that the native decoder refuses."""

from __future__ import annotations

import ctypes

import pytest
import torch

from inference.models.native.packing import Format
from tests.cases import each_case
from tests.inference.models.native.packed_decoder import VOCAB_SIZE, decoder, run


def test_logits_that_are_kept_stay_as_they_are(library: ctypes.CDLL) -> None:
    """Those that nobody reads give their memory to the next step's."""
    native = decoder(library, Format.Q8)
    kept = run(native, [1, 2, 3], [0, 0, 1])
    row, before = kept[0], kept.clone()
    run(native, [4, 5, 6], [0, 0, 1])
    assert torch.equal(kept, before)
    del kept
    first = run(native, [7, 8, 9], [0, 0, 1]).data_ptr()
    assert torch.equal(row, before[0])
    assert run(native, [4, 5], [0, 1]).data_ptr() == first


@each_case("token_id", [-1, VOCAB_SIZE, 2**31 - 1, -(2**31)])
def test_a_token_outside_the_vocabulary_stops_the_step(library: ctypes.CDLL, token_id: int) -> None:
    native = decoder(library, Format.Q8)
    expected = run(native, [1, 2, 3], [0, 0, 1])
    with pytest.raises(IndexError, match="outside the vocabulary"):
        run(native, [1, token_id, 3], [0, 0, 1])
    assert torch.equal(run(native, [1, 2, 3], [0, 0, 1]), expected)

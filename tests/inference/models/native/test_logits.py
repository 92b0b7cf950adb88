"""Where a step's logits lie: in the last step's memory, unless somebody still reads those."""

from __future__ import annotations

import ctypes

import torch

from inference.models.native.packing import Format
from tests.inference.models.native.packed_decoder import Sequences, decoder


def test_logits_that_are_kept_stay_as_they_are(library: ctypes.CDLL) -> None:
    native = decoder(library, Format.Q8, dequantized=False)
    kept = Sequences(native, 2).run([1, 2, 3], [0, 0, 1])
    row, before = kept[0], kept.clone()
    Sequences(native, 2).run([4, 5, 6], [0, 0, 1])
    assert torch.equal(kept, before)
    del kept
    Sequences(native, 2).run([7, 8, 9], [0, 0, 1])
    assert torch.equal(row, before[0])


def test_logits_that_nobody_reads_give_their_memory_to_the_next(library: ctypes.CDLL) -> None:
    native = decoder(library, Format.Q8, dequantized=False)
    first = Sequences(native, 2).run([1, 2, 3], [0, 0, 1]).data_ptr()
    assert Sequences(native, 2).run([4, 5], [0, 1]).data_ptr() == first

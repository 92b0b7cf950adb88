"""A sequence's own random numbers. A number belongs to a place in the output, so that a step that
is tried again draws what it drew before."""

from __future__ import annotations

import random

NUM_RANDOM_BITS = 24
"""What float32 holds exactly below 1."""


class RandomStream:
    __slots__ = ("_generator", "_last", "_place", "_value")

    def __init__(self, seed: int | None) -> None:
        # Python's generator takes a seed's absolute value; as 64 bits, -1 is not 1.
        self._generator = random.Random(None if seed is None else seed % 2**64)
        self._place = -1
        self._value = 0.0
        self._last = 0.0
        """The value of the place before."""

    def uniform(self, place: int) -> float:
        """Returns a number in [0, 1) for the output's token at ``place``. Places are asked for in
        order, each as often as needed. The one before the newest can still be asked for: the step
        after may have been launched when a step is tried again."""
        if place < self._place:
            assert place == self._place - 1
            return self._last
        if place != self._place:
            self._place, self._last = place, self._value
            self._value = self._generator.getrandbits(NUM_RANDOM_BITS) * 2.0**-NUM_RANDOM_BITS
        return self._value

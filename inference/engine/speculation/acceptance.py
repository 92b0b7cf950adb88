"""How often proposals turn out right, by how long a match they follow. Pure counting."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

MATCH_CLASSES = (4, 8, 16)
"""Upper bounds of the classes of match lengths."""
PRIORS = (0.3, 0.5, 0.7, 0.85)
"""How often drafts of each class are taken to be right before anything is known."""
GAIN = 0.125
"""How far one token moves an estimate."""
ENGINE_GAIN = 0.01
"""The same for what the next sequence starts from."""


def match_class(match_length: int) -> int:
    return sum(match_length >= limit for limit in MATCH_CLASSES)


class Acceptance:
    """The chance that one more proposed token is right where those before it were. ``parent`` is
    where this one starts from, and learns from it, slower."""

    __slots__ = ("_gain", "_parent", "rates")

    def __init__(self, parent: Acceptance | None = None) -> None:
        self._parent = parent
        self._gain = GAIN if parent is not None else ENGINE_GAIN
        self.rates: list[float] = list(parent.rates if parent is not None else PRIORS)

    def record(self, of_class: int, proposed: Ordered[int], came: Ordered[int]) -> None:
        """``came``: the model's own tokens at the proposed ones' places, as far as they are
        known."""
        for guess, token_id in zip(proposed, came, strict=False):
            is_right = guess == token_id
            self._move(of_class, is_right)
            if not is_right:
                break

    def _move(self, of_class: int, is_right: bool) -> None:
        self.rates[of_class] += self._gain * (is_right - self.rates[of_class])
        if self._parent is not None:
            self._parent._move(of_class, is_right)

"""Proposes what followed the last time: the longest run of tokens at the end of a text that it had
before, and what came after it there.

    text   … the quick brown fox … the quick brown ▏
             [  match      ] ─▶ fox …  is proposed

Plain integers; knows no sequences. For one text, which only grows.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST_MATCH = 2
LONG_MATCH = 6
"""Matches of so many tokens are looked up at once; shorter ones among the last few places."""
LONGEST_MATCH = 32
"""A longer match is no better evidence."""
MOST_PLACES = 8
TOKEN_BITS = 24
"""Token ids are smaller than this allows."""
INDEXED_AT_ONCE = 8192
"""Tokens of a long prompt that one call takes in: a few milliseconds."""
_LONG_MASK = (1 << TOKEN_BITS * LONG_MATCH) - 1


@dataclass(frozen=True, slots=True)
class Proposal:
    token_ids: list[int]
    """The proposed tokens; never empty."""
    match_length: int
    """Tokens before it that are the same, ``LONGEST_MATCH`` at most."""


class PromptLookup:
    """A proposal costs microseconds, however long the text is."""

    __slots__ = ("_earlier", "_key", "_latest", "_latest_long", "_num_indexed")

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        """Two tokens -> where the last place but the end itself ends at which they stood."""
        self._latest_long: dict[int, int] = {}
        """The same of ``LONG_MATCH`` tokens."""
        self._earlier: list[int] = []
        """The end of the place before with the same two tokens, by a place's end; 0: there is
        none."""
        self._key = 0
        """The last ``LONG_MATCH`` tokens that are indexed."""
        self._num_indexed = 0

    def propose(self, text: list[int], most: int) -> Proposal | None:
        """Proposes at most ``most`` tokens to follow ``text``, which begins with that of the last
        call; ``None`` without a match."""
        self._index(text)
        if self._num_indexed < len(text) - 1 or len(text) <= SHORTEST_MATCH or most < 1:
            return None
        end, length = self._best_place(text)
        if not length:
            return None
        token_ids = text[end : end + most]
        period = len(text) - end
        while len(token_ids) < most:  # the text repeats itself up to its end
            token_ids.append(token_ids[-period])
        return Proposal(token_ids, length)

    def _index(self, text: list[int]) -> None:
        """All places but the end of the text, which would find itself."""
        latest, latest_long, earlier, key = (
            self._latest,
            self._latest_long,
            self._earlier,
            self._key,
        )
        first = self._num_indexed
        last = min(len(text) - 1, first + INDEXED_AT_ONCE)
        for end, token_id in enumerate(text[first:last], start=first + 1):
            key = (key << TOKEN_BITS | token_id) & _LONG_MASK
            if end < SHORTEST_MATCH:
                earlier.append(0)
                continue
            pair = key & _PAIR_MASK
            earlier.append(latest.get(pair, 0))
            latest[pair] = end
            if end >= LONG_MATCH:
                latest_long[key] = end
        self._key = key
        self._num_indexed = max(first, last)

    def _best_place(self, text: list[int]) -> tuple[int, int]:
        """Returns where the longest match ends, the last of equals, and its length, which is 0
        without a match."""
        key = (self._key << TOKEN_BITS | text[-1]) & _LONG_MASK
        if len(text) >= LONG_MATCH and (end := self._latest_long.get(key)):
            return end, _match_length(text, end)
        best_end = best_length = 0
        end = self._latest.get(key & _PAIR_MASK, 0)
        for _ in range(MOST_PLACES):
            if not end:
                break
            if (length := _match_length(text, end)) > best_length:
                best_end, best_length = end, length
            end = self._earlier[end - 1]
        return best_end, best_length


_PAIR_MASK = (1 << TOKEN_BITS * SHORTEST_MATCH) - 1


def _match_length(text: list[int], end: int) -> int:
    """How many tokens before ``end`` are those at the end of the text."""
    most, length, last = min(end, LONGEST_MATCH), 0, len(text)
    while length < most and text[end - 1 - length] == text[last - 1 - length]:
        length += 1
    return length

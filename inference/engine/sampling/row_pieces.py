"""Goes through rows as wide as a vocabulary a few at a time: intermediate results take several
times a row's memory, so that all rows at once would take too much."""

from __future__ import annotations

from collections.abc import Iterator

MOST_SCORES_AT_ONCE = 2**23
"""32 MiB as float32: 55 rows of a vocabulary of 152,000."""


def rows_at_once(vocab_size: int) -> int:
    return max(1, MOST_SCORES_AT_ONCE // vocab_size)


def row_pieces(num_rows: int, vocab_size: int) -> Iterator[slice]:
    """Pieces of the rows, one after the other; a single one where the rows are few."""
    step = rows_at_once(vocab_size)
    for first in range(0, num_rows, step):
        yield slice(first, min(first + step, num_rows))

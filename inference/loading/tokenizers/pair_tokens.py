"""The separator that a tokenizer puts between the two texts of a pair, for models with token
types."""

from __future__ import annotations

from pathlib import Path

import tokenizers


def separator_of_pairs(directory: Path) -> int | None:
    """The last token of the first text, where tokens of the second are of another type; ``None``:
    the tokenizer has no types."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    encoded = tokenizer.encode("a", "b")
    if 1 not in encoded.type_ids:
        return None
    first = encoded.type_ids.index(1)
    return int(encoded.ids[first - 1]) if first else None

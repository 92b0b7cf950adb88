"""The largest counts that a file may declare: of layers, experts and positions. They are checked
before a family reads the file, because reading, planning and building a model loop over them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from inference.protocol.load_errors import BadFileError

MOST_LAYERS = 1024
"""The deepest published decoders have some two hundred."""
MOST_EXPERTS = 2**16
"""Doge's config has 16,384 by default, which are single rows."""
MOST_POSITIONS = 2**24
"""The longest published contexts are of ten million tokens."""
MOST_OF_ANYTHING = 2**31 - 1
"""Kernels count in 32 bits."""

_LIMITS = (
    (re.compile(r"(.*[_.])?n?_?layers?|.*block_count|depth"), MOST_LAYERS),
    (re.compile(r"(.*[_.])?experts(_per_tok(en)?)?|.*expert_(used_|shared_)?count"), MOST_EXPERTS),
    (
        re.compile(
            r".*position_embeddings|n_positions|max_seq_len|seq_length|.*context_length|max_seqlen"
        ),
        MOST_POSITIONS,
    ),
)


def check_counts(declared: Mapping[str, Any]) -> None:
    """``declared``: config.json, or a GGUF's metadata. Raises ``BadFileError``."""
    for key, value in _whole_numbers(declared):
        most = next((most for names, most in _LIMITS if names.fullmatch(key)), None)
        if most is not None and value > most:
            raise BadFileError(f"{key} is {value}; this build reads models of up to {most}")


def _whole_numbers(declared: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """All of them by their keys, of nested objects as well."""
    waiting = [declared]
    while waiting:
        for key, value in waiting.pop().items():
            if isinstance(value, Mapping):
                waiting.append(value)
            elif isinstance(value, int):
                yield key, value

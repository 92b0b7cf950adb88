"""What ``quant`` of the original means for a model of ours. Pure.

There it names a GGUF file for a model on one card, by a part of the file's name, and what weights
are quantised to while they load for a model that spans cards.
"""

from __future__ import annotations

import re
from typing import Any

QUANTISED = re.compile(r"q([2-8])_?(?:k|[01])", re.IGNORECASE)
"""``q4_0``, ``q6k``: the bits, and a layout of the original's own."""
DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
KNOWN = "q4, q8, bf16, f16, f32"
OF_BITS = {"2": "q4", "3": "q4", "4": "q4", "5": "q8", "6": "q8", "8": "q8"}


def while_loading(quant: str) -> dict[str, Any] | None:
    """The settings that bring dense weights to it; ``None`` for a name of files alone."""
    if (dtype := DTYPES.get(quant.lower())) is not None:
        return {"dtype": dtype}
    match = QUANTISED.fullmatch(quant)
    bits = None if match is None else OF_BITS.get(match[1])
    return None if bits is None else {"quantization": bits}


def names_a_file(quant: str, source: str, num_ranks: int) -> bool:
    """Ranks read safetensors alone. A repository of GGUF files says so in its name; others are
    safetensors, and ``quant`` is what becomes of them."""
    if num_ranks > 1:
        return False
    is_dense = source.startswith("huggingface:") and "gguf" not in source.lower()
    return not (is_dense and while_loading(quant) is not None)

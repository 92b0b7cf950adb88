"""What ``quant`` of the original means for a model of ours. Pure.

There it names a GGUF file for a model on one card, by a part of the file's name, and what weights
are quantised to while they load for a model that spans cards.
"""

from __future__ import annotations

from typing import Any

from fleet.catalogue.quant_names import QUANTIZATION_OF_NAME

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
KNOWN = "q4k, q5k, q6k, q8_0, bf16, f16, f32"


def while_loading(quant: str) -> dict[str, Any] | None:
    """The settings that bring dense weights to it; ``None`` for a name of files alone."""
    if (dtype := DTYPES.get(quant.lower())) is not None:
        return {"dtype": dtype}
    quantization = QUANTIZATION_OF_NAME.get(quant.lower())
    return None if quantization is None else {"quantization": quantization}


def names_a_file(quant: str, source: str, num_ranks: int) -> bool:
    """Ranks read safetensors alone. A repository of GGUF files has that in its name; others are
    safetensors, which ``quant`` quantises."""
    if num_ranks > 1:
        return False
    is_dense = source.startswith("huggingface:") and "gguf" not in source.lower()
    return not (is_dense and while_loading(quant) is not None)

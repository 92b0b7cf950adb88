"""What ``quant`` of the original means for a model of ours. Pure.

There it names a GGUF file for a model on one card, by a part of the file's name, and what weights
are quantised to while they load for a model that spans cards.
"""

from __future__ import annotations

import re
from typing import Any

from fleet.catalogue.quant_names import QUANTIZATION_OF_NAME
from inference.loading.sources.hub_sources import is_of_hub

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
KNOWN = "q4k, q5k, q6k, q8_0, bf16, f16, f32"
GGUF_SUFFIX = ".gguf"
_QUANT_LIKE = re.compile(r"(?:^|[.\-_])((?:I|T)?Q\d[A-Z0-9_]*|(?:MX|NV)FP4)$", re.IGNORECASE)
_GGUF_QUANT = re.compile(
    r"Q[2-6]_?K(_?(S|M|L|XL))?|Q8_?K(_?XL)?|Q[458]_?[01](_\d)*|IQ1_?[SM]|IQ2_?(XXS|XS|S|M)"
    r"|IQ3_?(XXS|XS|S|M)|IQ4_?(NL|XS)|TQ[12]_?0|Q1_?0|(?:MX|NV)FP4",
    re.IGNORECASE,
)
KNOWN_OF_FILES = "Q2_K to Q6_K, Q4_0 to Q8_0, IQ1_S to IQ4_XS, TQ1_0, TQ2_0, Q1_0, MXFP4, NVFP4"


def unknown_quant(quant: str, source: str) -> str | None:
    """Why it is refused; ``None``: it is a file's name, the name of a quantization, or, of a source
    that has GGUF files, a part of their names."""
    if quant.lower().endswith(GGUF_SUFFIX) or while_loading(quant) is not None:
        return None
    match = _QUANT_LIKE.search(quant)
    if match is None and not _is_dense(source):
        return None
    if match is not None and _GGUF_QUANT.fullmatch(match[1]):
        return None
    return (
        f"{quant!r} is no quantization: dense weights are brought to {KNOWN} while they load, and "
        f"GGUF files have {KNOWN_OF_FILES}, or a name that ends in {GGUF_SUFFIX}"
    )


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
    return not (_is_dense(source) and while_loading(quant) is not None)


def _is_dense(source: str) -> bool:
    return is_of_hub(source) and "gguf" not in source.lower()

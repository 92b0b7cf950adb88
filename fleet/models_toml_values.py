"""Keys, values and names of a models.toml beside those of the catalogue. Pure."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from fleet.catalogue import SETTINGS
from fleet.catalogue.kinds import (
    QUANTIZATION_OF_NAME,
    Count,
    Money,
    NeuronNames,
    Number,
    Targets,
    Word,
)
from inference.loading.sources.hub_sources import is_of_hub

KEY_OF_SETTING = {name: name for name in SETTINGS} | {
    "max_context_tokens": "limit.context",
    "max_output_tokens": "limit.output",
    "input_price_micro_usd": "cost.input",
    "cached_input_price_micro_usd": "cost.cache_read",
    "output_price_micro_usd": "cost.output",
    "request_price_micro_usd": "cost.request",
    "unit_price_micro_usd": "cost.unit",
}
"""Dots separate keys of tables. Settings without a key in the original have their own name."""
SETTING_OF_KEY = {key: name for name, key in KEY_OF_SETTING.items()}
TABLES = ("limit", "cost")
OUR_HARNESS = "helexa"
NOT_HONOURED = {
    "harness": "{} is not honoured: helexa's own engine serves it",
    "capabilities": "not honoured: a loaded model reports its capabilities",
    "limit.input": "not honoured: prompt and answer share the context",
    "cost.cache_write": "not honoured: filling the prefix cache costs nothing",
}
"""The original's keys that have no effect here, and what is said of them."""
KNOWN_KEYS = SETTING_OF_KEY.keys() | {"id", "quant", *NOT_HONOURED}
NOT_SET = "none"
"""TOML has no null: this unsets a number whose default is another."""
MICRO_PLACES = 6

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
QUANTS_WHILE_LOADING = "q4k, q5k, q6k, q8_0, bf16, f16, f32"
GGUF_SUFFIX = ".gguf"
_QUANT_LIKE = re.compile(r"(?:^|[.\-_])((?:I|T)?Q\d[A-Z0-9_]*|(?:MX|NV)FP4)$", re.IGNORECASE)
_GGUF_QUANT = re.compile(
    r"Q[2-6]_?K(_?(S|M|L|XL))?|Q8_?K(_?XL)?|Q[458]_?[01](_\d)*|IQ1_?[SM]|IQ2_?(XXS|XS|S|M)"
    r"|IQ3_?(XXS|XS|S|M)|IQ4_?(NL|XS)|TQ[12]_?0|Q1_?0|(?:MX|NV)FP4",
    re.IGNORECASE,
)
GGUF_QUANTS = "Q2_K to Q6_K, Q4_0 to Q8_0, IQ1_S to IQ4_XS, TQ1_0, TQ2_0, Q1_0, MXFP4, NVFP4"


def from_toml(name: str, value: Any) -> Any:
    """Does not check types. Raises ``ValueError`` for a price that is not whole micro-USD."""
    kind = SETTINGS[name].kind
    match kind:
        case Count(is_optional=True) | Number() if value == NOT_SET:
            return None
        case Money():
            return _micro_usd(value)
        case Number() if isinstance(value, Decimal):
            return float(value)
        case NeuronNames() | Targets():
            return tuple(value) if isinstance(value, list) else value
        case Word():
            return kind.canonical(value)
        case _:
            return value


def to_toml(value: object, name: str = "") -> str:
    match value:
        case None:
            return json.dumps(NOT_SET)
        case bool():
            return "true" if value else "false"
        case str():
            # JSON's escapes are TOML's; TOML wants one more character escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return f"[{', '.join(map(to_toml, value))}]"
        case int() if name in SETTINGS and isinstance(SETTINGS[name].kind, Money):
            return f"{Decimal(value).scaleb(-MICRO_PLACES).normalize():f}"
        case _:
            return str(value)


def _micro_usd(value: Any) -> int:
    if type(value) not in (int, Decimal) or not Decimal(value).is_finite():
        raise ValueError(f"{value!s} is not an amount of USD")
    micro = Decimal(value).scaleb(MICRO_PLACES)
    if micro != micro.to_integral_value():
        raise ValueError(f"{value} USD has more than {MICRO_PLACES} decimal places")
    return int(micro)


def name_of_id(given: str) -> str:
    """``Qwen/Qwen3.6-27B`` is ``qwen3.6-27b``: catalogue names are slugs."""
    return slug(given.rpartition("/")[2])


def slug(text: str) -> str:
    joined = re.sub(r"[^a-z0-9]*[^a-z0-9._-][^a-z0-9]*|[._-]{2,}", "-", text.lower())
    return joined.strip("._-")


def while_loading(quant: str) -> dict[str, Any] | None:
    """Settings that quantize dense weights so; ``None``: only GGUF files have such a name."""
    if (dtype := DTYPES.get(quant.lower())) is not None:
        return {"dtype": dtype}
    quantization = QUANTIZATION_OF_NAME.get(quant.lower())
    return None if quantization is None else {"quantization": quantization}


def names_a_file(quant: str, source: str, num_ranks: int) -> bool:
    """Several ranks read only safetensors. A repository of GGUF files has that in its name; of any
    other, ``quant`` quantizes the safetensors."""
    return num_ranks <= 1 and not (_is_dense(source) and while_loading(quant) is not None)


def unknown_quant(quant: str, source: str) -> str | None:
    """``None``: it names a file or a quantization, or is a part of a GGUF file's name."""
    if quant.lower().endswith(GGUF_SUFFIX) or while_loading(quant) is not None:
        return None
    match = _QUANT_LIKE.search(quant)
    is_known = not _is_dense(source) if match is None else _GGUF_QUANT.fullmatch(match[1])
    if is_known:
        return None
    return (
        f"{quant!r} is no quantization: dense weights are brought to {QUANTS_WHILE_LOADING} while "
        f"they load, and GGUF files have {GGUF_QUANTS}, or a name that ends in {GGUF_SUFFIX}"
    )


def _is_dense(source: str) -> bool:
    return is_of_hub(source) and "gguf" not in source.lower()

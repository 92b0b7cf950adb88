"""The keys of models.toml and the settings behind them; how values are written there. Pure."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from fleet.catalogue import SETTINGS, SettingValue
from fleet.catalogue.kinds import Count, Money, NeuronNames, Number, Targets, Word

KEY_OF_SETTING = {name: name for name in SETTINGS} | {
    "max_context_tokens": "limit.context",
    "max_output_tokens": "limit.output",
    "input_price_micro_usd": "cost.input",
    "cached_input_price_micro_usd": "cost.cache_read",
    "output_price_micro_usd": "cost.output",
    "request_price_micro_usd": "cost.request",
    "unit_price_micro_usd": "cost.unit",
}
"""Dots are for keys of a table. Settings that the original has no key for have their own name."""
SETTING_OF_KEY = {key: name for name, key in KEY_OF_SETTING.items()}

OTHER_KEYS = frozenset(
    {"id", "harness", "quant", "capabilities", "limit.input", "cost.cache_write"}
)
"""Keys of the original that are not one of our settings each."""
TABLES = ("limit", "cost")
KNOWN_KEYS = OTHER_KEYS | SETTING_OF_KEY.keys()

NOT_SET = "none"
"""TOML has no null: how a number is left open whose default is another."""
MICRO_PLACES = 6


def flattened(entry: dict[str, Any]) -> dict[str, Any]:
    """``{"limit": {"context": 1}}`` as ``{"limit.context": 1}``. What should be a table and is not
    stays under its own name, which no setting has."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if key in TABLES and isinstance(value, dict):
            flat |= {f"{key}.{inner}": each for inner, each in value.items()}
        else:
            flat[key] = value
    return flat


def from_toml(name: str, value: Any) -> Any:
    """The value of a setting. What cannot be one is left for the check to refuse. Raises
    ``ValueError`` for a price that is no whole number of micro-USD."""
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


def to_toml(name: str, value: SettingValue) -> str:
    """The value as the file writes it."""
    if value is None:
        return json.dumps(NOT_SET)
    if isinstance(SETTINGS[name].kind, Money):
        assert isinstance(value, int)
        return f"{Decimal(value).scaleb(-MICRO_PLACES).normalize():f}"
    return toml_value(value)


def toml_value(value: SettingValue) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            # JSON's escapes are TOML's; TOML wants one more character escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case _:
            return str(value)


def _micro_usd(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError(f"{value!r} is not an amount of USD")
    if not Decimal(value).is_finite():
        raise ValueError(f"{value} is not an amount of USD")
    micro = Decimal(value).scaleb(MICRO_PLACES)
    if micro != micro.to_integral_value():
        raise ValueError(f"{value} USD has more than {MICRO_PLACES} decimal places")
    return int(micro)

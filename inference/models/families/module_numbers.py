"""Numbers of a config.json that goes to transformers' own module as it is. transformers checks the
types of what it declares; it takes NaN for a number, and some modules then answer with it.
"""

from __future__ import annotations

import math
from typing import Any

from inference.models.families.hub_config import Json
from inference.protocol.load_errors import BadFileError

EPSILONS = ("eps", "epsilon")
"""Endings of the names of numbers that are added to a variance before its root is taken."""


def check_numbers(config: Json, of: str = "") -> None:
    """Infinity is allowed in lists: it is how a range without an end is written. Raises
    ``BadFileError``."""
    for key, value in config.items():
        if isinstance(value, dict) and "__float__" not in value:
            check_numbers(value, f"{of}{key}.")
        elif problem := _problem(key, value):
            raise BadFileError(f"config.json: {of}{key} is {value!r}, not {problem}")


def _problem(key: str, value: Any) -> str | None:
    listed = value if isinstance(value, list) else [value]
    numbers = [number for one in listed if (number := _number(one)) is not None]
    if any(math.isnan(number) for number in numbers):
        return "a number"
    if any(map(math.isinf, numbers)) and not isinstance(value, list):
        return "a finite number"
    if key.endswith(EPSILONS) and any(number < 0 for number in numbers):
        return "a number from 0 up"
    return None


def _number(value: Any) -> float | None:
    """Returns a number as a float, also one that JSON has no word for and transformers writes its
    own way; ``None`` for anything else."""
    match value:
        case bool():
            return None
        case int() | float():
            return float(value)
        case {"__float__": str(word)}:
            return float(word)
    return None

"""The sampling defaults of a model's own files, for what a client leaves out: only numbers that the
sampler can compute with. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inference.protocol.load_errors import BadFileError

BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, math.inf),
}
"""The bounds of each default, by the names of ``SamplingOptions``. A file may go beyond what
clients may ask for, and no further than to what has a meaning."""

NEUTRAL: dict[str, Any] = {
    "general.sampling.sequence": "",
    "general.sampling.xtc_probability": 0,
    "general.sampling.mirostat": 0,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
}
"""Defaults of GGUF files and of generation_config.json that no sampler here computes, with the
value that changes nothing. What only tunes one of them (``mirostat_tau``) goes without saying."""


def generation_defaults(
    given: Mapping[str, Any], keys: Mapping[str, str] | None = None
) -> dict[str, float | int]:
    """``keys``: how ``given`` spells the names; ``None``: as ``BOUNDS`` does. Raises
    ``BadFileError``."""
    names = keys or {name: name for name in BOUNDS}
    found = {
        name: _checked(key, given[key], *BOUNDS[name])
        for key, name in names.items()
        if given.get(key) is not None
    }
    return {name: _whole(value) if name == "top_k" else value for name, value in found.items()}


def unused_defaults(given: Mapping[str, Any]) -> tuple[str, ...]:
    """A phrase for each default that would change answers and is not computed."""
    return tuple(
        f"{key} {given[key]!r}"
        for key, neutral in NEUTRAL.items()
        if given.get(key) is not None and given[key] != neutral
    )


def _checked(key: str, value: Any, least: float, most: float) -> float | int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadFileError(f"the model's default {key} is {value!r}, not a number")
    if not (least <= value <= most and value < math.inf):
        bounds = f"from {least:g} up" if most == math.inf else f"from {least:g} to {most:g}"
        raise BadFileError(f"the model's default {key} is {value!r}; it has to be {bounds}")
    return value


def _whole(value: float) -> int:
    """Some files write 50.0, and -1 for as many as there are."""
    if value != int(value):
        raise BadFileError(f"the model's default top_k is {value!r}, not a whole number")
    return max(0, int(value))

"""How long a neuron that was asked to stop works on at what runs."""

from __future__ import annotations

from collections.abc import Mapping

DRAIN_VARIABLE = "HELEXA_NEURON_DRAIN_S"
DEFAULT_DRAIN_S = 25.0


def drain_limit_s(environment: Mapping[str, str]) -> float:
    """Raises ``ValueError``, for the operator."""
    word = environment.get(DRAIN_VARIABLE, "").strip()
    if not word:
        return DEFAULT_DRAIN_S
    if not word.isascii() or not word.isdigit():
        raise ValueError(f"{DRAIN_VARIABLE}={word!r} is not a number of whole seconds")
    return float(word)

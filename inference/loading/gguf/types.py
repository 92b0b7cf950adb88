"""GGUF's tensor types by number and name: which are read here, and words for those that are not.

Imports no torch: a header is checked by processes without it.
"""

from __future__ import annotations

import difflib

from gguf.constants import GGMLQuantizationType

from inference.models.families.gguf_types import GGUF_TYPES

READABLE_TYPES = frozenset(GGMLQuantizationType[type.name] for type in GGUF_TYPES)

REMOVED = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Types that llama.cpp once wrote."""


def tensor_type(number: int) -> GGMLQuantizationType:
    """Raises ``ValueError`` with words for a type that the format does not have, or no more."""
    if number in REMOVED:
        raise ValueError(
            f"stored as {REMOVED[number]}, a type that GGUF no longer has; the nearest that is "
            f"read here is {nearest(REMOVED[number])}"
        )
    try:
        return GGMLQuantizationType(number)
    except ValueError:
        raise ValueError(
            f"stored as type {number}, and {number} is not a valid type of GGUF; the nearest that "
            f"is read here is {_nearest_number(number)}"
        ) from None


def unreadable_reason(type: GGMLQuantizationType) -> str | None:
    """Why weights of a type that GGUF has cannot be read here, or ``None``."""
    if type in READABLE_TYPES:
        return None
    known = ", ".join(sorted(type.name for type in READABLE_TYPES))
    return (
        f"stored as {type.name}, which is not read here; the nearest that is read is "
        f"{nearest(type.name)}, of: {known}"
    )


def nearest(name: str) -> str:
    """The readable type whose name is most like ``name``."""
    names = sorted(str(type.name) for type in READABLE_TYPES)
    (found,) = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return found


def _nearest_number(number: int) -> str:
    found = min(READABLE_TYPES, key=lambda type: (abs(type.value - number), type.value))
    return str(found.name)

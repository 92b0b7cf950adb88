"""One setting of a catalogue model: its kind and its place in forms. Columns, form fields and
models.toml follow from the kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fleet.catalogue.targets import targets_problem
from inference.protocol.keys import NEURON_NAME
from inference.protocol.load import Quantization
from metering.money import MAX_PRICE_MICRO_USD

MAX_COUNT = 2**31 - 1
MAX_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """``None`` where nothing is set; an empty text where it has several lines."""

    max_length: int
    is_required: bool = False
    has_lines: bool = False

    def problem(self, value: object) -> str | None:
        if value is None:
            return "This is needed" if self.is_required else None
        if not isinstance(value, str):
            return f"{value!r} is not text"
        if "\x00" in value:
            return "Text holds no NUL"
        if len(value) > self.max_length:
            return f"At most {self.max_length} characters; this has {len(value)}"
        return None


@dataclass(frozen=True, slots=True)
class Word:
    """``synonyms``, in small letters, are read as one of the words."""

    words: tuple[str, ...]
    synonyms: Mapping[str, str] = field(default_factory=dict)

    def canonical(self, value: Any) -> Any:
        return self.synonyms.get(value.lower(), value) if isinstance(value, str) else value

    def problem(self, value: object) -> str | None:
        if value in self.words:
            return None
        return f"{value!r} is not one of {', '.join(self.words)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    least: int = 1
    most: int = MAX_COUNT
    is_optional: bool = True

    def problem(self, value: object) -> str | None:
        if value is None:
            return None if self.is_optional else "A number is needed"
        if type(value) is not int:
            return f"{value!r} is not a whole number"
        if value < self.least:
            return f"{value} is less than {self.least}"
        return f"{value} is more than {self.most}" if value > self.most else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    least: float
    most: float

    def problem(self, value: object) -> str | None:
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            return f"{value!r} is not a number"
        is_within = self.least <= value <= self.most  # a NaN compares false
        return None if is_within else f"{value} is not from {self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class Money:
    """Micro-USD, per million tokens; ``None``: not priced."""

    def problem(self, value: object) -> str | None:
        if value is None:
            return None
        if type(value) is not int:
            return f"{value!r} is not a whole number of micro-USD"
        is_price = 0 <= value <= MAX_PRICE_MICRO_USD
        return None if is_price else "A price is from 0 up to 999,999,999.999999 USD"


@dataclass(frozen=True, slots=True)
class Flag:
    def problem(self, value: object) -> str | None:
        return None if isinstance(value, bool) else f"{value!r} is neither true nor false"


@dataclass(frozen=True, slots=True)
class NeuronNames:
    """Neurons, which need not have joined yet."""

    def problem(self, value: object) -> str | None:
        if not isinstance(value, tuple):
            return f"{value!r} is not a list of neuron names"
        for name in value:
            if not isinstance(name, str) or not NEURON_NAME.fullmatch(name):
                return (
                    f"{name!r} is not a neuron name: letters, digits, '.', '_' and '-', 63 at most"
                )
        if len(set(value)) < len(value):
            return "A neuron is named once"
        return None


@dataclass(frozen=True, slots=True)
class Targets:
    def problem(self, value: object) -> str | None:
        if not isinstance(value, tuple) or not all(isinstance(one, str) for one in value):
            return f"{value!r} is not a list of targets"
        return targets_problem(value)


Kind = Text | Word | Count | Number | Money | Flag | NeuronNames | Targets


class Section(StrEnum):
    OFFER = ""
    FILES = "Files"
    WEIGHTS = "Weights"
    LIMITS = "Limits"
    SAMPLING = "Sampling"
    QUEUE = "Queue"
    PLACEMENT = "Placement"
    PRICES = "Prices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    kind: Kind
    section: Section
    label: str
    """Empty: the field's name in words."""
    help_text: str


def setting(
    section: Section, kind: Kind, help_text: str = "", *, default: Any = None, label: str = ""
) -> Any:
    """``default``: ``MISSING`` where a value is required."""
    described = Setting(kind=kind, section=section, label=label, help_text=help_text)
    return field(default=default, metadata={"setting": described})


LAYOUTS = ("k", "_k", "_0", "_1")
BITS: dict[int, Quantization] = {2: "q4", 3: "q4", 4: "q4", 5: "q5", 6: "q6", 8: "q8"}
QUANTIZATION_OF_NAME: dict[str, Quantization] = {
    f"q{bits}{layout}": quantization for bits, quantization in BITS.items() for layout in LAYOUTS
}
"""The original's names, in lower case, of load-time quantizations; 2 and 3 bits become 4."""

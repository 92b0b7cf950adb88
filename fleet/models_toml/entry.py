"""One entry of a models.toml, as a model of ours. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.catalogue import (
    SETTINGS,
    CatalogueSettings,
    check_alias_name,
    check_model_source,
    check_name,
    whole_source,
)
from fleet.catalogue.rules import check_settings
from fleet.errors import CatalogueValueError
from fleet.models_toml.keys import (
    KEY_OF_SETTING,
    KNOWN_KEYS,
    SETTING_OF_KEY,
    flattened,
    from_toml,
)
from fleet.models_toml.names import free_name
from fleet.models_toml.quant import KNOWN, names_a_file, unknown_quant, while_loading
from inference.loading.sources.hub_sources import default_scheme

OF_UNITS = frozenset({"cost.request", "cost.unit"})
"""Prices of models that have none for tokens."""
OUR_HARNESS = "helexa"
ZERO_IS_OPEN = ("vram_mb", "min_device_vram_mb", "min_devices")
"""Keys for which 0 means unset in the original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something of the file that is not honoured, or not as it was."""

    key: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEntry:
    id: str
    name: str
    settings: CatalogueSettings
    notes: tuple[Note, ...]


class EntryError(ValueError):
    """``problems`` are pairs of a key and its problem."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__(str(problems))
        self.problems = problems


def read_entry(
    raw: dict[str, Any], models: Mapping[str, str], aliases: Mapping[str, Any]
) -> ReadEntry:
    """``models`` are names of earlier entries, ``aliases`` the file's, each with its id. Raises
    ``EntryError``."""
    flat = flattened(raw)
    reading = _Reading({key: value for key, value in flat.items() if not _is_open(key, value)})
    reading.read_name(models, aliases)
    reading.refuse_unknown_keys()
    reading.read_settings()
    reading.read_ranks()
    reading.read_source()
    reading.read_quant()
    reading.note_what_is_not_honoured()
    return reading.result()


def _is_open(key: str, value: Any) -> bool:
    return key in ZERO_IS_OPEN and type(value) is int and value == 0


class _Reading:
    def __init__(self, flat: dict[str, Any]) -> None:
        self._flat = flat
        self._id = ""
        self._name = ""
        self._values: dict[str, Any] = {}
        self._notes: list[Note] = []
        self._problems: list[tuple[str, str]] = []

    def read_name(self, models: Mapping[str, str], aliases: Mapping[str, Any]) -> None:
        given = self._flat.get("id")
        if not isinstance(given, str) or not given:
            self._problems.append(("id", "Each model has an id"))
            return
        self._id, self._name = given, free_name(given, models, aliases)
        if self._name in models:
            message = f"The entry of {models[self._name]!r} has the same name, {self._name!r}"
            self._problems.append(("id", message))
            return
        try:
            check_name(self._name)
            if self._name != given:
                check_alias_name(given)
                self._note("id", f"it is named {self._name}, and {given} is an alias of it")
        except CatalogueValueError as error:
            self._problems.append(("id", str(error)))

    def refuse_unknown_keys(self) -> None:
        for key in self._flat:
            if key not in KNOWN_KEYS:
                near = difflib.get_close_matches(key, KNOWN_KEYS, n=1)
                hint = f"; is {near[0]} meant?" if near else ""
                self._problems.append((key, f"There is no such key{hint}"))

    def read_settings(self) -> None:
        for key, value in self._flat.items():
            if (name := SETTING_OF_KEY.get(key)) is None or key == "source":
                continue
            try:
                self._values[name] = from_toml(name, value)
            except ValueError as error:
                self._problems.append((key, str(error)))
        if any(key.startswith("cost.") and key not in OF_UNITS for key in self._flat):
            self._values.setdefault("input_price_micro_usd", 0)
            self._values.setdefault("output_price_micro_usd", 0)

    def read_ranks(self) -> None:
        """The original shares a model by as many ranks as it has cards."""
        number = self._values.get("min_devices", 1)
        if isinstance(number, int) and number > 1 and "tensor_parallel" not in self._values:
            self._values["tensor_parallel"] = number
            self._note("min_devices", f"as many ranks share it: tensor_parallel = {number}")

    def read_source(self) -> None:
        """A whole source of ours, or the original's: the name of a scheme, of which the id is the
        rest."""
        given = self._flat.get("source") or default_scheme()
        if not isinstance(given, str):
            self._problems.append(("source", f"{given!r} is not text"))
            return
        source = whole_source(given)
        if ":" not in source:
            source = f"{source}:{self._id}"
        try:
            check_model_source(source)
        except CatalogueValueError as error:
            self._problems.append(("source", str(error)))
        self._values["source"] = source

    def read_quant(self) -> None:
        quant = self._flat.get("quant")
        if quant is None or quant == "":
            return
        if not isinstance(quant, str):
            self._problems.append(("quant", f"{quant!r} is not text"))
        elif "file" in self._flat:
            self._problems.append(("quant", "file means the same: one of them is enough"))
        elif "quantization" in self._flat or names_a_file(
            quant, self._values["source"], self._num_ranks
        ):
            self._values["file"] = quant
            if problem := unknown_quant(quant, self._values["source"]):
                self._problems.append(("quant", problem))
        else:
            self._quantise_while_loading(quant)

    @property
    def _num_ranks(self) -> int:
        number = self._values.get("tensor_parallel", 1)
        return number if isinstance(number, int) else 1

    def _quantise_while_loading(self, quant: str) -> None:
        values = while_loading(quant)
        if values is None:
            message = f"{quant!r} is none that weights are brought to while they load: {KNOWN}"
            self._problems.append(("quant", message))
            return
        self._values |= values
        words = " and ".join(f"{name} = {value}" for name, value in values.items())
        self._note("quant", f"{quant} of dense weights is {words} here")

    def note_what_is_not_honoured(self) -> None:
        harness = self._flat.get("harness", OUR_HARNESS)
        if harness != OUR_HARNESS:
            self._note("harness", f"{harness} is not honoured: helexa's own engine serves it")
        if self._flat.get("capabilities"):
            self._note("capabilities", "not honoured: a loaded model reports its capabilities")
        if "limit.input" in self._flat:
            self._note("limit.input", "not honoured: prompt and answer share the context")
        if self._flat.get("cost.cache_write"):
            self._note("cost.cache_write", "not honoured: filling the prefix cache costs nothing")

    def result(self) -> ReadEntry:
        problems = self._problems + self._problems_alone()
        problems = problems or self._problems_together()
        if problems:
            raise EntryError(problems)
        return ReadEntry(
            id=self._id,
            name=self._name,
            settings=CatalogueSettings(**self._values),
            notes=tuple(self._notes),
        )

    def _problems_alone(self) -> list[tuple[str, str]]:
        return [
            (KEY_OF_SETTING[name], problem)
            for name, value in self._values.items()
            if (problem := SETTINGS[name].kind.problem(value))
        ]

    def _problems_together(self) -> list[tuple[str, str]]:
        try:
            check_settings(CatalogueSettings(**self._values))
        except CatalogueValueError as error:
            return [(KEY_OF_SETTING[error.field], str(error))]
        return []

    def _note(self, key: str, message: str) -> None:
        self._notes.append(Note(key=key, message=message))

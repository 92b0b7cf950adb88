"""One entry of ``[[models]]``: the original's keys and ours, as a model's settings. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from fleet.catalogue import (
    CatalogueSettings,
    check_alias_name,
    check_name,
    settings_problems,
    whole_source,
)
from fleet.errors import CatalogueValueError
from fleet.models_toml import values as toml
from inference.loading.sources.hub_sources import default_scheme

ZERO_IS_UNSET = ("vram_mb", "min_device_vram_mb", "min_devices")
"""Keys for which 0 means unset in the original."""
PRICES_WITHOUT_TOKENS = ("cost.request", "cost.unit")


class Entry:
    """``problems`` and ``notes`` are pairs of a key and a message; ``models`` are the names of
    earlier entries with their ids, ``aliases`` the file's with theirs. ``settings`` is ``None``
    where there are problems."""

    def __init__(
        self, raw: Mapping[str, Any], models: Mapping[str, str], aliases: Mapping[str, Any]
    ) -> None:
        self._flat = _flattened(raw)
        self._values: dict[str, Any] = {}
        self.id = self.name = ""
        self.problems: list[tuple[str, str]] = []
        self.notes: list[tuple[str, str]] = []
        self._read_name(models, aliases)
        for key in [key for key in self._flat if key not in toml.KNOWN_KEYS]:
            near = difflib.get_close_matches(key, toml.KNOWN_KEYS, n=1)
            hint = f"; is {near[0]} meant?" if near else ""
            self.problems.append((key, f"There is no such key{hint}"))
        self._read_settings()
        self._read_quant()
        for key, message in toml.NOT_HONOURED.items():
            if (value := self._flat.get(key)) and value != toml.OUR_HARNESS:
                self.notes.append((key, message.format(value)))
        settings = CatalogueSettings(**self._values)
        for name, problem in settings_problems(settings):
            self.problems.append((toml.KEY_OF_SETTING[name], problem))
        self.settings = None if self.problems else settings

    def _read_name(self, models: Mapping[str, str], aliases: Mapping[str, Any]) -> None:
        given = self._flat.get("id")
        if not isinstance(given, str) or not given:
            self.problems.append(("id", "Each model has an id"))
            return
        # Of two repositories with one base name the second keeps its organisation.
        name = toml.name_of_id(given)
        is_free = all(owners.get(name, given) == given for owners in (models, aliases))
        self.id, self.name = given, name if is_free else toml.slug(given)
        try:
            check_name(self.name)
            if self.name != given:
                check_alias_name(given)
                self.notes.append(("id", f"it is named {self.name}, and {given} is an alias of it"))
        except CatalogueValueError as error:
            self.problems.append(("id", str(error)))
        if self.name in models:
            message = f"The entry of {models[self.name]!r} has the same name, {self.name!r}"
            self.problems.append(("id", message))

    def _read_settings(self) -> None:
        for key, value in self._flat.items():
            if (name := toml.SETTING_OF_KEY.get(key)) is None:
                continue
            try:
                self._values[name] = toml.from_toml(name, value)
            except ValueError as error:
                self.problems.append((key, str(error)))
        if any(key.startswith("cost.") and key not in PRICES_WITHOUT_TOKENS for key in self._flat):
            self._values.setdefault("input_price_micro_usd", 0)
            self._values.setdefault("output_price_micro_usd", 0)
        # The original divides a model into as many ranks as it has cards.
        number = self._values.get("min_devices", 1)
        if isinstance(number, int) and number > 1 and "tensor_parallel" not in self._values:
            self._values["tensor_parallel"] = number
            self.notes.append(
                ("min_devices", f"as many ranks share it: tensor_parallel = {number}")
            )
        # A whole source, or the original's: a scheme, with the id as the rest.
        source = self._values.get("source") or default_scheme()
        if isinstance(source, str):
            source = whole_source(source)
            source = source if ":" in source else f"{source}:{self.id}"
        self._values["source"] = source

    def _read_quant(self) -> None:
        """The original's ``quant`` names a GGUF file by a part of its name for a model on one card,
        and the quantization of weights for a model that spans cards."""
        quant = self._flat.get("quant", "")
        source, ranks = self._values["source"], self._values.get("tensor_parallel", 1)
        if quant == "" or not isinstance(source, str) or not isinstance(ranks, int):
            return
        problem: str | None = None
        if not isinstance(quant, str):
            problem = f"{quant!r} is not text"
        elif "file" in self._flat:
            problem = "file means the same: one of them is enough"
        elif "quantization" in self._flat or toml.names_a_file(quant, source, ranks):
            self._values["file"] = quant
            problem = toml.unknown_quant(quant, source)
        elif (values := toml.while_loading(quant)) is not None:
            self._values |= values
            words = " and ".join(f"{name} = {value}" for name, value in values.items())
            self.notes.append(("quant", f"{quant} of dense weights is {words} here"))
        else:
            known = toml.QUANTS_WHILE_LOADING
            problem = f"{quant!r} is none that weights are brought to while they load: {known}"
        if problem is not None:
            self.problems.append(("quant", problem))


def _flattened(entry: Mapping[str, Any]) -> dict[str, Any]:
    """``{"limit": {"context": 1}}`` as ``{"limit.context": 1}``, without what is unset. A value in
    place of a table keeps its own name, which no setting has."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if key in toml.TABLES and isinstance(value, dict):
            flat |= {f"{key}.{inner}": each for inner, each in value.items()}
        elif not (key in ZERO_IS_UNSET and type(value) is int and value == 0):
            flat[key] = value
    return flat

"""Finds the line numbers of the entries and keys of a models.toml. Pure.

TOML parsers give values without their lines. This looks for what usual files have: ``[[models]]``,
``[aliases]`` and keys at the start of a line. A file that is written otherwise has no line numbers.
"""

from __future__ import annotations

import re

HEADER = re.compile(r"\s*\[(?P<array>\[)?\s*(?P<name>[\w.-]+)\s*\]")
KEY = re.compile(r"\s*(?P<key>[\w.-]+|\"[^\"]+\"|'[^']+')\s*=")


class Lines:
    """``num_models`` is how many the parser found."""

    def __init__(self, text: str, num_models: int) -> None:
        self._models: list[dict[str, int]] = []
        self._aliases: dict[str, int] = {}
        self._read(text)
        if len(self._models) != num_models:
            self._models = [{}] * num_models

    def of_model(self, index: int, key: str = "") -> int | None:
        """The line of a key (``limit.context``), else of its table, else of the entry."""
        lines = self._models[index]
        return lines.get(key) or lines.get(key.partition(".")[0]) or lines.get("")

    def of_alias(self, name: str) -> int | None:
        return self._aliases.get(name) or self._aliases.get("")

    def _read(self, text: str) -> None:
        keys, prefix = {}, ""
        for number, line in enumerate(text.splitlines(), start=1):
            if header := HEADER.match(line):
                name = header["name"]
                if header["array"] and name == "models":
                    keys, prefix = {"": number}, ""
                    self._models.append(keys)
                elif name == "aliases":
                    self._aliases[""] = number
                    keys, prefix = self._aliases, ""
                else:
                    prefix = name.removeprefix("models.") + "."
            elif key := KEY.match(line):
                keys.setdefault(prefix + key["key"].strip("\"'"), number)

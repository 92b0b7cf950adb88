"""Golden files: one a dialect, ``tests/golden/<dialect>.json``, with its cases by name.

A case has named parts: what is given, and what the code makes of it. A part is JSON, a text is the
list of its lines, and a request that is no JSON is one string.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

GOLDEN_DIR = Path(__file__).resolve().parents[2] / "golden"


@dataclass(frozen=True, slots=True)
class GoldenCase:
    dialect: str
    name: str
    parts: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.dialect}/{self.name}"

    def given(self, part: str) -> bytes:
        """Returns the part as a client sends it."""
        value = self.parts[part]
        return value.encode() if isinstance(value, str) else json.dumps(value).encode()

    def text(self, part: str) -> bytes:
        return "".join(self.parts[part]).encode()

    def outputs(self) -> dict[str, Any]:
        """Makes the case's outputs, by part, with today's code."""
        raise NotImplementedError

    def check(self) -> dict[str, Any]:
        """Returns the outputs. Raises ``AssertionError`` where one differs, if only in the order
        of its fields."""
        outputs = self.outputs()
        for name, value in outputs.items():
            assert name in self.parts, f"{self} has no {name}"
            assert pretty(self.parts[name]) == pretty(value), f"{self}: {name} differs"
        return outputs


AnyCase = TypeVar("AnyCase", bound=GoldenCase)


def cases_of(kind: type[AnyCase], dialects: Iterable[str]) -> list[AnyCase]:
    return [
        kind(dialect, name, parts)
        for dialect in dialects
        for name, parts in json.loads(_path(dialect).read_bytes()).items()
    ]


def lines_of(text: bytes) -> list[str]:
    return text.decode().splitlines(keepends=True)


def pretty(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def regenerate(cases: Iterable[GoldenCase]) -> None:
    files: dict[str, dict[str, Any]] = {}
    for case in cases:
        files.setdefault(case.dialect, {})[case.name] = case.parts | case.outputs()
    for dialect, content in files.items():
        _path(dialect).write_text(pretty(content))


def _path(dialect: str) -> Path:
    return GOLDEN_DIR / f"{dialect}.json"

"""What golden cases of every kind share: their folders, and how their outputs are written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

GOLDEN_DIR = Path(__file__).resolve().parents[2] / "golden"


@dataclass(frozen=True, slots=True)
class GoldenCase:
    dialect: str
    path: Path

    def __str__(self) -> str:
        return f"{self.dialect}/{self.path.name}"

    def outputs(self) -> dict[str, bytes]:
        """What the code makes of the case today, by file name."""
        raise NotImplementedError


AnyCase = TypeVar("AnyCase", bound=GoldenCase)


def cases_of(kind: type[AnyCase], dialects: Iterable[str]) -> list[AnyCase]:
    return [
        kind(dialect, path)
        for dialect in dialects
        for path in sorted((GOLDEN_DIR / dialect).iterdir())
    ]


def pretty(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"


def regenerate(cases: Iterable[GoldenCase]) -> None:
    for case in cases:
        for name, content in case.outputs().items():
            (case.path / name).write_bytes(content)

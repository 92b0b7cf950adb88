"""Results of checks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works now, and may not later."""
    FAILED = "failed"


MARKS = {Level.OK: "ok  ", Level.WARNING: "warn", Level.FAILED: "FAIL"}
CHECK_WIDTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    level: Level
    text: str
    mend: str = ""
    """The remedy."""


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, level=Level.OK, text=text)


def warning(check: str, text: str, mend: str) -> Finding:
    return Finding(check=check, level=Level.WARNING, text=text, mend=mend)


def failed(check: str, text: str, mend: str) -> Finding:
    return Finding(check=check, level=Level.FAILED, text=text, mend=mend)


def lines_of(finding: Finding) -> list[str]:
    lines = [f"{MARKS[finding.level]} {finding.check:<{CHECK_WIDTH}} {finding.text}"]
    if finding.mend:
        lines.append(f"{' ' * (len(MARKS[Level.OK]) + CHECK_WIDTH + 2)}-> {finding.mend}")
    return lines


def object_of(findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "ok": not has_failed(findings),
        "findings": [asdict(finding) for finding in findings],
    }


def has_failed(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.FAILED for finding in findings)

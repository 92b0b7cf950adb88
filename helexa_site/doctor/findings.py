"""Results of checks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works now, and may not later."""
    FAILED = "failed"


MARKS = {Level.OK: "ok  ", Level.WARNING: "warn", Level.FAILED: "FAIL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str = ""
    """``run_checks`` adds the name of the check where it is empty."""
    level: Level
    text: str
    mend: str = ""
    """The remedy."""


def ok(text: str) -> Finding:
    return Finding(level=Level.OK, text=text)


def warning(text: str, mend: str) -> Finding:
    return Finding(level=Level.WARNING, text=text, mend=mend)


def failed(text: str, mend: str) -> Finding:
    return Finding(level=Level.FAILED, text=text, mend=mend)


def run_checks(checks: Mapping[str, Callable[[], Iterator[Finding]]]) -> Iterator[Finding]:
    for name, check in checks.items():
        try:
            for finding in check():
                yield replace(finding, check=finding.check or name)
        except Exception as error:  # noqa: BLE001 - the other checks continue
            reason = f"{type(error).__name__}: {error}"
            yield replace(failed(f"this check broke: {reason}", "report this line"), check=name)


def lines_of(finding: Finding) -> list[str]:
    lines = [f"{MARKS[finding.level]} {finding.check:<10} {finding.text}"]
    if finding.mend:
        lines.append(f"{'':16}-> {finding.mend}")
    return lines


def object_of(findings: Sequence[Finding]) -> dict[str, Any]:
    return {"ok": not has_failed(findings), "findings": [asdict(one) for one in findings]}


def has_failed(findings: Sequence[Finding]) -> bool:
    return any(finding.level is Level.FAILED for finding in findings)

"""Child's side of a subject process: reads questions, writes answers. See ``subject``."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import psutil

from benchmarks.subject import INTERPRETER_MEMORY, MEMORY, READY_LINE, Subject


def main() -> None:
    kind, options = sys.argv[1], json.loads(sys.argv[2])
    module = importlib.import_module(f"benchmarks.subjects.{kind}")
    interpreter_mib = _import_libraries(module.LIBRARIES)
    subject: Subject = module.open_subject(**options)
    _write({"description": subject.describe()})
    try:
        for line in sys.stdin:
            question = json.loads(line)
            _write({"answer": _answer(subject, question, interpreter_mib)})
    finally:
        subject.close()


def _import_libraries(names: Sequence[str] | None) -> float | None:
    if names is None:
        return None
    for name in names:
        importlib.import_module(name)
    return resident_mib()


def _answer(subject: Subject, question: dict[str, Any], interpreter_mib: float | None) -> object:
    measure = question.pop("measure")
    if measure == INTERPRETER_MEMORY:
        return interpreter_mib
    if measure == MEMORY:
        return None if interpreter_mib is None else resident_mib()
    answer: object = getattr(subject, measure)(**question)
    return answer


def resident_mib() -> float:
    """What this process holds, Python and all."""
    resident_bytes: int = psutil.Process().memory_info().rss
    return resident_bytes / 2**20


def _write(answer: object) -> None:
    sys.stdout.write(READY_LINE + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

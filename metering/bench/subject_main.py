"""Child's side of a subject process: reads questions, writes answers. See ``subject``."""

from __future__ import annotations

import importlib
import json
import sys

import psutil

from metering.bench.subject import MEMORY, READY_LINE, Subject


def main() -> None:
    kind, options = sys.argv[1], json.loads(sys.argv[2])
    module = importlib.import_module(f"metering.bench.subjects.{kind}")
    subject: Subject = module.open_subject(**options)
    _write({"description": subject.describe()})
    try:
        for line in sys.stdin:
            question = json.loads(line)
            name = question.pop("measure")
            measure = resident_mib if name == MEMORY else getattr(subject, name)
            _write({"answer": measure(**question)})
    finally:
        subject.close()


def resident_mib(seed: int) -> float:
    """Of this process, Python and all; ``seed`` means nothing."""
    resident_bytes: int = psutil.Process().memory_info().rss
    return resident_bytes / 2**20


def _write(answer: object) -> None:
    sys.stdout.write(READY_LINE + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Child's side of a subject process: reads questions, writes answers. See ``subject``."""

from __future__ import annotations

import importlib
import json
import sys

from metering.bench.subject import READY_LINE, Subject


def main() -> None:
    kind, options = sys.argv[1], json.loads(sys.argv[2])
    module = importlib.import_module(f"metering.bench.subjects.{kind}")
    subject: Subject = module.open_subject(**options)
    _write({"description": subject.describe()})
    try:
        for line in sys.stdin:
            question = json.loads(line)
            measure = getattr(subject, question.pop("measure"))
            _write({"answer": measure(**question)})
    finally:
        subject.close()


def _write(answer: object) -> None:
    sys.stdout.write(READY_LINE + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

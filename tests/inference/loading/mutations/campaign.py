"""Runs cases of mutated files in child processes, many a child, and collects their findings.

By hand, with a count for each subject and a file for the findings:
    python -m tests.inference.loading.mutations.campaign COUNT LOG NATIVE_CACHE_DIR [SUBJECT ...]
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.inference.loading.mutations.subjects import SLOW, SUBJECTS

REPOSITORY = Path(__file__).resolve().parents[4]
SILENCE_S = 180.0
"""A case that takes longer is a hang: the usual one takes some milliseconds."""
CASES_OF_A_CHILD = 2500


class Work(NamedTuple):
    """Cases [first, last) of a subject, for a child."""

    subject: str
    kind: str
    source: str
    first: int
    last: int


@dataclass(slots=True)
class Findings:
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    slowest_s: float = 0.0

    @property
    def num_cases(self) -> int:
        return self.counts.total()

    def add(self, case: dict[str, Any]) -> None:
        self.counts[str(case["found"])] += 1
        self.slowest_s = max(self.slowest_s, float(case.get("seconds", 0.0)))
        if case["is_wrong"]:
            self.wrong.append(case)


def run_cases(
    ranges: Mapping[str, range], folder: Path, native_cache_dir: Path
) -> dict[str, Findings]:
    """The cases of each subject. A child that dies or hangs is a finding, and the next one starts
    behind that case."""
    sources = {subject: _saved(subject, folder / subject) for subject in ranges}
    waiting = [
        Work(subject, SUBJECTS[subject].kind, str(sources[subject]), cases.start, cases.stop)
        for subject, cases in ranges.items()
    ]
    findings = {subject: Findings() for subject in ranges}
    while waiting:
        waiting = _run_child(waiting, native_cache_dir, findings)
    return findings


def _saved(subject: str, folder: Path) -> Path:
    folder.mkdir()
    return SUBJECTS[subject].save(folder)


def _run_child(
    waiting: list[Work], native_cache_dir: Path, findings: dict[str, Findings]
) -> list[Work]:
    """Returns the work left for the next child."""
    mine, left = _first_cases(waiting)
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.child", json.dumps(mine), str(native_cache_dir)],
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            text=True,
        )
        at: tuple[str, int] | None = None
        for line in _lines(child):
            case = json.loads(line)
            at = (case["subject"], case["case"])
            if "found" in case:
                findings[case["subject"]].add(case)
                at = None
        child.kill()
        code = child.wait()
        errors.seek(0)
        words = errors.read().decode(errors="replace")[-2000:]
    if at is None:
        assert code == 0, words
        return left
    found = "a hang" if code == -9 else f"a crash ({code})"
    case = {"subject": at[0], "case": at[1], "found": found, "words": words, "is_wrong": True}
    findings[at[0]].add(case)
    return [*_behind(mine, *at), *left]


def _first_cases(waiting: list[Work]) -> tuple[list[Work], list[Work]]:
    """Returns as many cases as a child takes, and the others."""
    mine: list[Work] = []
    room = CASES_OF_A_CHILD
    for index, work in enumerate(waiting):
        end = min(work.last, work.first + room)
        mine.append(work._replace(last=end))
        room -= end - work.first
        if not room:
            rest = [work._replace(first=end)] if end < work.last else []
            return mine, [*rest, *waiting[index + 1 :]]
    return mine, []


def _behind(works: list[Work], subject: str, case: int) -> list[Work]:
    at = next(index for index, work in enumerate(works) if work.subject == subject)
    rest = works[at]._replace(first=case + 1)
    return [*([rest] if rest.first < rest.last else []), *works[at + 1 :]]


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    """Reads lines until the child has ended, or was silent for too long."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=SILENCE_S)
        except queue.Empty:
            return
        if line is None:
            return
        yield line


def main() -> None:
    count, log, native_cache_dir, *subjects = sys.argv[1:]
    for subject in subjects or SUBJECTS:
        num_cases = int(count) // (20 if subject in SLOW else 1)
        with tempfile.TemporaryDirectory() as folder, Path(log).open("a") as file:
            cases = {subject: range(num_cases)}
            found = run_cases(cases, Path(folder), Path(native_cache_dir))[subject]
            print(f"{subject}: {found.num_cases} cases, {dict(found.counts)}", file=file)
            print(f"    {len(found.wrong)} wrong, slowest {found.slowest_s:.1f} s", file=file)
            for case in found.wrong:
                print(f"    {json.dumps(case)}", file=file)


if __name__ == "__main__":
    main()

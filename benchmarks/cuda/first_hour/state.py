"""What has been run, on disk after every part, so that a later run resumes there.

FOLDER/state.json     how each part ended
FOLDER/logs/PART.N.out, .err     what its Nth run wrote; none is ever overwritten
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.cuda.first_hour.plan import Part

Outcome = Literal["passed", "failed", "timed out"]


class StateError(Exception):
    """The state cannot be read; the message names its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    outcome: Outcome
    seconds: float
    summary: str
    log: str
    """The log's name in the folder, without its ending."""
    commit: str = ""
    """The commit of the checkout that ran it."""


class State:
    """``results`` by the parts' names. Whatever ran last counts."""

    def __init__(self, folder: Path) -> None:
        """Raises ``StateError``."""
        self._folder = folder
        self._file = folder / "state.json"
        self.results: dict[str, Result] = {}
        try:
            kept = json.loads(self._file.read_bytes())
            self.results = {name: Result(**result) for name, result in kept.items()}
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, AttributeError) as error:
            raise StateError(f"{self._file} is no state of a first hour: {error}") from error

    def keep(self, part: Part, result: Result) -> None:
        self.results[part.name] = result
        self._folder.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: the machine may go at any moment.
        unfinished = self._file.with_suffix(".unfinished")
        kept = {name: asdict(result) for name, result in self.results.items()}
        unfinished.write_text(json.dumps(kept, indent=2))
        unfinished.replace(self._file)

    def next_log(self, part: Part) -> Path:
        """Returns the path of the part's next log, without its extension. No earlier run has used
        it."""
        logs = self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9.]+", "-", part.name)
        number = 1 + sum(1 for _ in logs.glob(f"{name}.*.out"))
        return logs / f"{name}.{number}"


def open_parts(
    parts: Sequence[Part],
    results: Collection[str],
    *,
    only: Collection[str],
    again: Collection[str],
) -> list[Part]:
    """Returns the parts to run: those without a result or in ``again``; of ``only``, if any."""
    return [
        part
        for part in parts
        if not part.left_out
        and (not only or part.name in only)
        and (part.name in again or part.name not in results)
    ]

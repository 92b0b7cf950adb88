"""Runs a part in a process group of its own, summarizes its output, and saves that after every
part, so that a later run resumes there.

FOLDER/state.json     how each part ended
FOLDER/logs/PART.N.out, .err     what its Nth run wrote; none is ever overwritten
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.table import Table

from benchmarks.first_hour.plan import Part, Summary, command_line
from benchmarks.subject import REPOSITORY_DIR

Outcome = Literal["passed", "failed", "timed out"]
END_TIMEOUT_S = 10.0
"""The time for an overdue part to end its own processes, before all are killed."""
MARK = "FACTS "
"""Begins the line of JSON in which a part reports."""
OPEN, LEFT_OUT = "not run", "left out"
NO_OUTPUT = "no output: see the log"


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
    """``results`` by the parts' names; the latest counts."""

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
        # Atomic: the machine may die at any moment.
        unfinished = self._file.with_suffix(".unfinished")
        kept = {name: asdict(result) for name, result in self.results.items()}
        unfinished.write_text(json.dumps(kept, indent=2))
        unfinished.replace(self._file)

    def next_log(self, part: Part) -> Path:
        """The path of the part's next log, without its extension, unused by earlier runs."""
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
    """The parts to run: those without a result or in ``again``; of ``only``, if any."""
    return [
        part
        for part in parts
        if not part.left_out
        and (not only or part.name in only)
        and (part.name in again or part.name not in results)
    ]


def run_part(part: Part, log: Path, environment: Mapping[str, str], commit: str) -> Result:
    """Writes ``log`` with the endings .out and .err. An interruption of the run ends the part's
    processes as well."""
    began_s = time.monotonic()
    out, err = log.with_name(f"{log.name}.out"), log.with_name(f"{log.name}.err")
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(
            command_line(part),
            cwd=REPOSITORY_DIR,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=err_file,
            start_new_session=True,
        )
        try:
            outcome: Outcome = "passed" if process.wait(part.limit_s) == 0 else "failed"
        except subprocess.TimeoutExpired:
            outcome = "timed out"
        finally:
            _end_group(process)
    return Result(
        outcome=outcome,
        seconds=round(time.monotonic() - began_s, 1),
        summary=summary_of(part.summary, _text(out), _text(err)),
        log=f"{log.parent.name}/{log.name}",
        commit=commit,
    )


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the process group, with the part's remaining processes. Engines are in sessions of their
    own and exit with the process that holds their socket."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
            # The leader has exited; others of its group get the second signal.
    process.wait()


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def print_facts(**facts: object) -> None:
    print(MARK + json.dumps(facts), flush=True)


def read_facts(output: str) -> Mapping[str, object]:
    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            facts: Mapping[str, object] = json.loads(line.removeprefix(MARK))
            return facts
    return {}


def summary_of(kind: Summary, output: str, errors: str) -> str:
    match kind:
        case "facts":
            found = _in_words(read_facts(output))
        case "bench":
            found = _bench_in_words(output)
        case "pytest":
            found = _last_line(output)
        case "lines":
            found = _in_words(_json_object(output)) or _last_line(output)
    return found or _last_line(errors) or NO_OUTPUT


def _in_words(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in facts.items())


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _json_object(output: str) -> Mapping[str, object]:
    """The JSON object's fields; none if the output is not one JSON object."""
    try:
        found = json.loads(output)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _bench_in_words(output: str) -> str:
    found = _json_object(output)
    rows = found.get("rows")
    words = [_row_in_words(row) for row in rows] if isinstance(rows, list) else []
    missing = found.get("not_measured")
    if isinstance(missing, dict):
        words += [f"{label} is not measured: {why}" for label, why in missing.items()]
    return "; ".join(words)


def _row_in_words(row: Mapping[str, object]) -> str:
    """``decode, 1 at once: 800 tok/s, 71 % of the best, 1.40 of transformers``"""
    rate, share = row.get("helexa_tokens_per_s"), row.get("share")
    words = [f"{rate:,.0f} tok/s" if isinstance(rate, float | int) else "unmeasured"]
    if isinstance(share, float):
        words.append(f"{share:.0%} of the best")
    for peer, name in (("transformers", "ratio"), ("vLLM", "vllm_ratio")):
        if isinstance(ratio := row.get(name), float):
            words.append(f"{ratio:.2f} of {peer}")
    return f"{str(row.get('name')).partition(', ')[2]}: {', '.join(words)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def table_of(parts: Sequence[Part], results: Mapping[str, Result], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("part", no_wrap=True)
    table.add_column("result", no_wrap=True)
    table.add_column("seconds", justify="right")
    table.add_column("found")
    table.add_column("log", no_wrap=True)
    for part in parts:
        table.add_row(*row_of(part, results.get(part.name)))
    return table


def row_of(part: Part, result: Result | None) -> tuple[str, str, str, str, str]:
    """The table's cells. Earlier findings of a part stay in the table where it is left out now."""
    if result is None:
        outcome = LEFT_OUT if part.left_out else OPEN
        return part.name, outcome, "", part.left_out, ""
    return part.name, result.outcome, f"{result.seconds:.0f}", result.summary, result.log

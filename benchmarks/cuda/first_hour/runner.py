"""Runs a part in a process group of its own, within its limit, and keeps what it writes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.cuda.first_hour.plan import Part, command_line
from benchmarks.cuda.first_hour.state import Outcome, Result
from benchmarks.cuda.first_hour.table import summary_of
from benchmarks.subject import REPOSITORY_DIR

END_TIMEOUT_S = 10.0
"""What a part that is over its limit gets to end its own processes, before all are killed."""


def run_part(part: Part, log: Path, environment: Mapping[str, str], commit: str) -> Result:
    """Writes ``log`` with the endings .out and .err. Whatever interrupts the run ends the part's
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
    """Ends the process group, also what the part has left behind. Engines are in sessions of their
    own and end with the process that holds their socket."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
            # The leader is gone; others of its group get the second signal.
    process.wait()


def _text(path: Path) -> str:
    return path.read_text(errors="replace")

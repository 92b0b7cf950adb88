"""Runs pip: one line shows its progress, and a file has all its output.

    pip ─▶ reader thread ─▶ log file, and the latest line ─▶ this thread ─▶ the progress line

On a terminal that line is overwritten, elsewhere there is a new one now and then. Standard library
only: this runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helexa_site.bootstrap.console import overwrite_line, print_step
from inference.supervised_threads import SupervisedThread

PROGRESS_EVERY_S = 30.0
"""How often a line is printed where no line can be overwritten."""
REFRESH_EVERY_S = 1.0
MAX_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class PipOutcome:
    return_code: int
    output: str


def run_pip(arguments: Sequence[str], log_path: Path) -> PipOutcome:
    """Runs ``pip install`` with these arguments, and appends its output to the log."""
    # Unbuffered, so that a line is there when it happens.
    command = [sys.executable, "-u", "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--no-input", "--retries", "2"]
    if not sys.dont_write_bytecode:
        # Python compiles imported modules itself: a small part. All takes pip a minute.
        command += ["--no-compile"]
    print_step("environment", f"pip's output: {log_path}")
    lines: list[str] = []
    with (
        log_path.open("a") as log,
        subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):

        def read() -> None:
            for line in process.stdout or ():
                lines.append(line)
                # A full disk: pip reports it itself, if its output is read on.
                with contextlib.suppress(OSError):
                    log.write(line)
                    log.flush()

        reader = SupervisedThread(read, name="pip")
        reader.start()
        _show(process, lines)
        reader.join()
    return PipOutcome(process.returncode, "".join(lines))


def _show(process: subprocess.Popen[str], lines: list[str]) -> None:
    is_terminal = sys.stdout.isatty()
    show = overwrite_line if is_terminal else print_step
    began_s = time.monotonic()
    while True:
        try:
            process.wait(REFRESH_EVERY_S if is_terminal else PROGRESS_EVERY_S)
            break
        except subprocess.TimeoutExpired:
            elapsed_s = time.monotonic() - began_s
            steps = (line for line in reversed(lines) if not line.startswith("WARNING"))
            latest = next(steps, "starting").strip()
            show("environment", f"{elapsed_s:.0f} s, {latest[:MAX_SHOWN_CHARACTERS]}")
    if is_terminal:
        overwrite_line("", "")

"""Runs pip for the operator: one line shows its progress, and a file keeps all that it prints.

    pip ─▶ reader thread ─┬▶ log file
                          └▶ how many packages, which download ─▶ this thread ─▶ the progress line

On a terminal that line is written over, elsewhere there is a new one now and then. Standard library
only: this runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from helexa_site.bootstrap.console import overwrite_line, print_line, print_step
from inference.supervised_threads import SupervisedThread

PROGRESS_EVERY_S = 30.0
"""How often a line is printed where no line can be overwritten."""
REFRESH_EVERY_S = 1.0
FAILURE_LINES = 12
LIMIT_S = 6 * 3600.0
"""A server that sends a byte now and then keeps pip waiting without end; 3 GB at 1.2 Mbit/s fit
in."""
COLLECTING = re.compile(r"^Collecting ")
DOWNLOADING = re.compile(r"^\s*Downloading (?:\S*/)?(?P<file>[^\s/]+)(?: \((?P<size>[^)]+)\))?")
INSTALLING = re.compile(r"^Installing collected packages: ")
INSTALLED = re.compile(r"^Successfully installed (?P<names>.+)$")


@dataclass(frozen=True, slots=True)
class PipOutcome:
    return_code: int
    output: str


def run_pip(arguments: Sequence[str], log_path: Path) -> PipOutcome:
    """``pip install`` with these arguments; what it prints is appended to the log. Where it fails,
    its last lines are shown."""
    # Unbuffered, so that a line is there when it happens.
    command = [sys.executable, "-u", "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--no-input", "--retries", "2"]
    if not sys.dont_write_bytecode:
        # Python compiles what is imported when it is: a small part. All takes pip a minute.
        command += ["--no-compile"]
    command += arguments
    print_step("environment", f"pip's output: {log_path}")
    progress = PipProgress()
    with (
        log_path.open("a") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        reader = SupervisedThread(partial(_read, process.stdout, log, progress), name="pip")
        reader.start()
        _show(process, progress)
        reader.join()
    if process.returncode != 0:
        for line in progress.lines[-FAILURE_LINES:]:
            print_line(f"  {line}")
    elif progress.num_installed:
        seconds = round(progress.elapsed_s)
        installed = _packages(progress.num_installed)
        print_step("environment", f"Successfully installed {installed}, {seconds} s")
    return PipOutcome(process.returncode, "\n".join(progress.lines))


class PipProgress:
    """Pip's progress, read from its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.num_installed = 0
        self._num_collected = 0
        self._doing = "starting"
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def feed(self, line: str) -> None:
        self.lines.append(line)
        if COLLECTING.match(line):
            self._num_collected += 1
            self._doing = "looking for what they need"
        elif download := DOWNLOADING.match(line):
            size = f" ({download['size']})" if download["size"] else ""
            self._doing = f"downloading {download['file']}{size}"
        elif INSTALLING.match(line):
            self._doing = "unpacking"
        elif installed := INSTALLED.match(line):
            self.num_installed = len(installed["names"].split())

    def __str__(self) -> str:
        return f"{_packages(self._num_collected)}, {self._doing}, {self.elapsed_s:.0f} s"


def _packages(count: int) -> str:
    return "1 package" if count == 1 else f"{count} packages"


def _read(output: IO[str], log: IO[str], progress: PipProgress) -> None:
    for line in output:
        progress.feed(line.rstrip("\n"))
        with contextlib.suppress(OSError):  # a full disk: pip reports it itself, if it is read on
            log.write(line)
            log.flush()


def _show(process: subprocess.Popen[str], progress: PipProgress) -> None:
    """Shows the progress until pip ends; kills pip after ``LIMIT_S``."""
    is_terminal = sys.stdout.isatty()
    while True:
        try:
            process.wait(REFRESH_EVERY_S if is_terminal else PROGRESS_EVERY_S)
            break
        except subprocess.TimeoutExpired:
            if progress.elapsed_s > LIMIT_S:
                print_step("environment", f"pip is ended: it took over {LIMIT_S / 3600:.0f} hours")
                process.kill()
            if is_terminal:
                overwrite_line("environment", str(progress))
            else:
                print_step("environment", str(progress))
    if is_terminal:
        overwrite_line("", "")

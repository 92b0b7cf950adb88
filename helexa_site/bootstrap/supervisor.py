"""Starts, logs, restarts (with back-off) and stops the child processes of one serve.

    keeper thread   spawn ─▶ wait ─▶ kill what its group left ─▶ back off ─▶ spawn …
    pump thread     one per process: its output ─▶ log file, and the console where it matters

Each process leads a session of its own: killing its group reaches its children too, and Ctrl-C in
the terminal reaches none of them. Must not know the processes' work.
"""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from signal import SIGTERM, Signals
from typing import IO, Self

from helexa_site.bootstrap.console import print_step, relay
from helexa_site.bootstrap.guardian import Guardian, kill_group
from inference.backoff import Backoff
from inference.supervised_threads import SupervisedThread

BACKOFF = Backoff(first_s=0.5, max_s=30.0)
"""Before an exited process is started again."""
STABLE_AFTER_S = 60.0
"""A process that lived this long resets its back-off."""
PUMP_DRAIN_TIMEOUT_S = 1.0
MAX_LAST_WORDS_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    tier: int
    """The stop order: a child with a lower tier outlives others."""
    stop_grace_s: float
    """Seconds between SIGTERM and SIGKILL."""
    shown: re.Pattern[str] | None = None
    """Lines of its output for the console too; ``None``: none."""


def ending_in_words(return_code: int) -> str:
    """``subprocess`` writes a signal as a negative code."""
    if return_code >= 0:
        return f"exit code {return_code}"
    return f"killed by {Signals(-return_code).name}"


class Child:
    """The process and its successors. Any thread may call; the keeper acts."""

    def __init__(self, spec: ChildSpec, *, log: LogFile, guardian: Guardian) -> None:
        self.spec = spec
        self._log = log
        self._guardian = guardian
        self.num_failures = 0
        """Unexpected exits since it was last stable."""
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._last_line = ""
        """The last line of its output, unless the console has shown it."""
        self._keeper = SupervisedThread(self._keep, name=f"keep-{spec.name}")

    def start(self) -> None:
        self._keeper.start()

    def ask_to_stop(self) -> None:
        """SIGTERM, and no restart from now on."""
        with self._lock:
            self._stopping.set()
            if self._process is not None:
                self._process.send_signal(SIGTERM)

    def stop(self) -> None:
        """Returns when it has exited; sends SIGKILL to its whole group after the grace."""
        self.ask_to_stop()
        self._keeper.join(self.spec.stop_grace_s)
        if self._keeper.is_alive:
            print_step(
                self.spec.name, f"did not stop within {self.spec.stop_grace_s:g} s; killing it"
            )
            self.kill()
            self._keeper.join()
        self._log.close()

    def kill(self) -> None:
        with self._lock:
            self._stopping.set()
            if self._process is not None:
                kill_group(self._process.pid)

    def _keep(self) -> None:
        self._end_leftover()
        while not self._stopping.is_set():
            started_s = time.monotonic()
            ending = self._live()
            if self._stopping.is_set():
                return
            lived_s = time.monotonic() - started_s
            self.num_failures = 1 if lived_s > STABLE_AFTER_S else self.num_failures + 1
            delay_s = BACKOFF.wait_s(self.num_failures)
            print_step(
                self.spec.name,
                f"ended ({ending}); restarting in {delay_s:g} s; its log: {self._log.path}"
                + (f"; it ends with: {self._last_line}" if self._last_line else ""),
            )
            self._stopping.wait(delay_s)

    def _live(self) -> str:
        try:
            process = self._spawn()
        except OSError as error:
            return f"cannot start {self.spec.command[0]}: {error.strerror}"
        if process is None:
            return "not started"
        assert process.stdout is not None
        pump = SupervisedThread(partial(self._pump, process.stdout), name=f"log-{self.spec.name}")
        pump.start()
        return_code = process.wait()
        with self._lock:
            self._process = None
        kill_group(process.pid)
        self._guardian.release(process.pid)
        pump.join(PUMP_DRAIN_TIMEOUT_S)
        return ending_in_words(return_code)

    def _end_leftover(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            kill_group(process.pid)
            process.wait()
            self._guardian.release(process.pid)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._stopping.is_set():
                return None
            self._process = subprocess.Popen(
                self.spec.command,
                env=dict(self.spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._guardian.watch(self._process.pid)
            return self._process

    def _pump(self, output: IO[bytes]) -> None:
        self._last_line = ""
        for line in output:
            text = line.decode(errors="replace").rstrip()
            self._log.write(text)
            if self.spec.shown is not None and self.spec.shown.search(text):
                relay(self.spec.name, text)
                self._last_line = ""
            elif text:
                self._last_line = text[:MAX_LAST_WORDS_CHARACTERS]
        output.close()


MAX_LOG_BYTES = 10 * 1024 * 1024


class LogFile(RotatingFileHandler):
    """Appended to by one thread at a time; ``path`` becomes ``path.1`` when it is full. A line that
    does not fit on a full disk is lost: the writing process never waits."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_LOG_BYTES) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=1, encoding="utf-8")
        self.path = path

    def write(self, line: str) -> None:
        self.emit(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class StoppingError(Exception):
    pass


class Supervisor:
    """A ``with`` block whose end stops every child; the guardian does so when this process is
    killed. Any thread may start children, also while another stops them."""

    def __init__(self, *, logs_dir: Path, guardian: Guardian) -> None:
        self._logs_dir = logs_dir
        self._guardian = guardian
        self._lock = threading.Lock()
        """Held while a child is added, so that none is added after the stop."""
        self._is_stopping = False
        self._children: list[Child] = []
        self._on_stopped: list[Callable[[], None]] = []

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    def ensure_running(self) -> None:
        """Raises ``StoppingError``."""
        if self._is_stopping:
            raise StoppingError

    def start(self, spec: ChildSpec) -> Child:
        """Raises ``StoppingError``."""
        with self._lock:
            self.ensure_running()
            log = LogFile(self._logs_dir / f"{spec.name}.log")
            child = Child(spec, log=log, guardian=self._guardian)
            child.start()
            self._children.append(child)
            return child

    def stop(self) -> None:
        """One tier after the other, each in parallel. Takes at most the sum of the tiers'
        graces."""
        with self._lock:
            self._is_stopping = True
        while self._children:
            highest = max(child.spec.tier for child in self._children)
            tier = [child for child in self._children if child.spec.tier == highest]
            for child in tier:
                child.ask_to_stop()
            for child in tier:
                child.stop()
                self._children.remove(child)
        while self._on_stopped:
            self._on_stopped.pop()()

    def kill(self) -> None:
        for child in list(self._children):
            child.kill()

    def on_stopped(self, clean_up: Callable[[], None]) -> None:
        """Calls ``clean_up`` when every child has exited; at once where they are being stopped
        already."""
        with self._lock:
            if not self._is_stopping:
                self._on_stopped.append(clean_up)
                return
        clean_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

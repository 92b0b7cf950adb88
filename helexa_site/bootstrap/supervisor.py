"""Starts, logs, restarts (with back-off) and stops the child processes of one serve. Each process
has a keeper thread and a pump thread, and leads a session of its own: killing its group reaches its
children too, and Ctrl-C in the terminal reaches none of them."""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from signal import Signals
from typing import IO, Protocol, Self

from helexa_site.bootstrap.console import print_step, relay
from helexa_site.bootstrap.guardian import Guardian, kill_group
from inference.backoff import Backoff

BACKOFF = Backoff(first_s=0.5, max_s=30.0)
WARNINGS = re.compile(
    r"^\d{4}-\d\d-\d\d \S+ (WARNING|ERROR|CRITICAL) |"
    r'^\{"ts": "[^"]*", "level": "(WARNING|ERROR|CRITICAL)"'
)
"""Records of ``inference.logs``, as text or JSON; not any line that contains the word."""
STABLE_AFTER_S = 60.0
PUMP_DRAIN_TIMEOUT_S = 1.0
MAX_LAST_WORDS_CHARACTERS = 300
MAX_LOG_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChildSpec:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stop_grace_s: float
    """Seconds between SIGTERM and SIGKILL."""


class StoppingError(Exception):
    pass


class Stoppable(Protocol):
    def stop(self) -> None: ...

    def kill(self) -> None: ...


class LogFile(RotatingFileHandler):
    """A line that does not fit on a full disk is lost: the writing process never waits."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_LOG_BYTES) -> None:
        super().__init__(path, maxBytes=max_bytes, backupCount=1, encoding="utf-8")

    def write(self, line: str) -> None:
        self.emit(logging.makeLogRecord({"msg": line}))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class Child:
    """The process and its successors. Any thread may stop it; the keeper starts it."""

    def __init__(self, spec: ChildSpec, *, log: LogFile, guardian: Guardian) -> None:
        self.spec = spec
        self.num_failures = 0
        """Unexpected exits since it was last stable."""
        self._log = log
        self._guardian = guardian
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._last_line = ""
        self._keeper = threading.Thread(target=self._keep, name=f"keep-{spec.name}", daemon=True)
        self._keeper.start()

    def stop(self) -> None:
        """Returns when it has exited; sends SIGKILL to its whole group after the grace."""
        with self._lock:
            self._stopping.set()
            if self._process is not None:
                self._process.terminate()
        self._keeper.join(self.spec.stop_grace_s)
        if self._keeper.is_alive():
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
        while not self._stopping.is_set():
            started_s = time.monotonic()
            ending = self._live()
            if self._stopping.is_set():
                return
            is_stable = time.monotonic() - started_s > STABLE_AFTER_S
            self.num_failures = 1 if is_stable else self.num_failures + 1
            delay_s = BACKOFF.wait_s(self.num_failures)
            last_words = f"; it ends with: {self._last_line}" if self._last_line else ""
            print_step(
                self.spec.name,
                f"ended ({ending}); restarting in {delay_s:g} s; its log: {self._log.baseFilename}"
                + last_words,
            )
            self._stopping.wait(delay_s)

    def _live(self) -> str:
        with self._lock:
            if self._stopping.is_set():
                return "not started"
            try:
                process = self._process = subprocess.Popen(
                    self.spec.command,
                    env=dict(self.spec.environment),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return f"cannot start {self.spec.command[0]}: {error.strerror}"
            self._guardian.watch(process.pid)
        pump = threading.Thread(target=self._pump, args=(process.stdout,), daemon=True)
        pump.start()
        return_code = process.wait()
        with self._lock:
            self._process = None
        kill_group(process.pid)
        self._guardian.release(process.pid)
        pump.join(PUMP_DRAIN_TIMEOUT_S)
        if return_code < 0:
            return f"killed by {Signals(-return_code).name}"
        return f"exit code {return_code}"

    def _pump(self, output: IO[bytes]) -> None:
        self._last_line = ""
        for line in output:
            text = line.decode(errors="replace").rstrip()
            self._log.write(text)
            if WARNINGS.search(text):
                relay(self.spec.name, text)
                self._last_line = ""
            elif text:
                self._last_line = text[:MAX_LAST_WORDS_CHARACTERS]
        output.close()


class Supervisor:
    """Its end stops every child. Any thread may start children, also while another stops them."""

    def __init__(self, *, logs_dir: Path, guardian: Guardian) -> None:
        self._logs_dir = logs_dir
        self._guardian = guardian
        self._lock = threading.Lock()
        """Held while a child is added, so that none is added after the stop."""
        self._children: list[Stoppable] = []
        self.is_stopping = False

    def ensure_running(self) -> None:
        """Raises ``StoppingError``."""
        if self.is_stopping:
            raise StoppingError

    def start(self, spec: ChildSpec) -> Child:
        """Raises ``StoppingError``."""
        with self._lock:
            self.ensure_running()
            log = LogFile(self._logs_dir / f"{spec.name}.log")
            child = Child(spec, log=log, guardian=self._guardian)
            self._children.append(child)
            return child

    def add(self, one: Stoppable) -> None:
        """Raises ``StoppingError``."""
        with self._lock:
            self.ensure_running()
            self._children.append(one)

    def stop(self) -> None:
        """The last first: each may need those that started before it."""
        with self._lock:
            self.is_stopping = True
        for child in reversed(self._children):
            child.stop()

    def kill(self) -> None:
        for child in self._children:
            child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

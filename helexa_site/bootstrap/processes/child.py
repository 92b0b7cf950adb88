"""One supervised process: start, log, restart with back-off, stop.

    keeper thread   spawn ─▶ wait ─▶ kill what its group left ─▶ back off ─▶ spawn …
    pump thread     one per life: its output ─▶ log file, and the console where it matters

The process leads a session of its own: killing its group reaches its children too, and Ctrl-C in
the terminal reaches none of them. Knows nothing of what the process does.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from signal import SIGTERM, Signals
from typing import IO

from helexa_site.bootstrap.console import print_step, relay
from helexa_site.bootstrap.processes.guardian import Guardian, kill_group
from helexa_site.bootstrap.processes.log_file import LogFile
from inference.backoff import Backoff
from inference.supervised_threads import SupervisedThread

BACKOFF = Backoff(first_s=0.5, max_s=30.0)
"""Before a process that ended is started again."""
STABLE_AFTER_S = 60.0
"""A process that lived this long starts its back-off from the beginning."""
PUMP_DRAIN_TIMEOUT_S = 1.0
MAX_LAST_WORDS_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    tier: int
    """The order of ends: of two children, the one with the lower tier outlives the other."""
    stop_grace_s: float
    """How long after SIGTERM comes SIGKILL."""
    shown: re.Pattern[str] | None = None
    """Lines of its output that the console shows as well; ``None``: none."""


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
        """How often it has ended unexpectedly since its last stable life."""
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._last_words = ""
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
        """Return when it is gone; SIGKILL to its whole group when the grace is over."""
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
        """SIGKILL to its whole group, and no restart from now on."""
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
                + (f"; it ends with: {self._last_words}" if self._last_words else ""),
            )
            self._stopping.wait(delay_s)

    def _live(self) -> str:
        """One life of the process, from start to end; returns its end in words."""
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
        """Ends the process of a keeper that broke, before the next one starts its own."""
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
        self._last_words = ""
        for line in output:
            self._log.write(line)
            text = line.decode(errors="replace").rstrip()
            if self.spec.shown is not None and self.spec.shown.search(text):
                relay(self.spec.name, text)
                self._last_words = ""
            elif text:
                self._last_words = text[:MAX_LAST_WORDS_CHARACTERS]
        output.close()
